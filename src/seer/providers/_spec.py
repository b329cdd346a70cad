"""Frozen descriptions of machines, files and results, and the form of a spec for other hosts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seer.isolation import BackendName, Mount

if TYPE_CHECKING:
    from seer.providers._base import Host

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]
Network = Literal["full", "none", "host"] | tuple[str, ...]
"""`full`: internet through the filtering proxy; a tuple: only those hosts."""
FileKind = Literal["file", "folder", "link", "socket", "other"]


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    """A machine to start. The provider supplies the requested resources or refuses."""

    label: str = "sandbox"
    """The machine's purpose, for listings."""
    note: str = ""
    """Text for a process that adopts the machine later (`Machine.note`). No secrets."""
    gpu: str | None = None
    gpu_count: int = 1
    gpu_optional: bool = False
    """Whether to accept another GPU, or none, if the host does not have the requested one."""
    share_gpus: bool = False
    """Whether to accept GPUs that are in use if none is free."""
    cpus: float | None = None
    memory: int | None = None
    disk: int | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment of every command in the machine (runtime secrets included)."""
    kept_secrets: tuple[str, ...] = ()
    """Names of secrets that the provider stores (`Provider.kept_secrets`). Their variables are also
    in the environment."""
    path_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables that hold a path below a mount's target. Each is set to the path at
    which programs in the machine see it (`Machine.path`)."""
    serves: bool = False
    """Whether it runs an interface instead of an agent's code. It may then use more of the
    resources that the kernel counts per user, and create the shared memory that carries arrays."""
    hidden: bool = False
    """Whether a model's origin must stay hidden. If so, only a backend that can hide it is used."""
    users: bool = False
    """Whether it has several users, including root; see `seer.isolation._policy.Users`."""
    mounts: tuple[Mount, ...] = ()
    """Paths of the machine's host to show in the machine; see `host`."""
    gates: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Sockets of this host for the served interfaces that this machine may call, by name."""
    relayed: frozenset[str] = frozenset()
    """The gates behind a relay, which cannot pass descriptors and whose connections may break."""
    workdir: Path | None = None
    """A folder of its host that becomes the machine's working folder."""
    python_env: Path | None = None
    """A package environment of its host to put before the interpreter's own."""
    installs: bool = False
    """Whether programs in it can install further packages, in addition to `python_env`."""
    python_version: str | None = None
    """The Python version, such as `3.12`, if the provider builds an image for the machine."""
    system_packages: tuple[str, ...] = ()
    """Debian packages to install, if the provider builds an image for the machine."""
    devices: tuple[int, ...] | None = None
    """The numbers of the host's GPUs to use, if they are already chosen. `CUDA_DEVICE_ORDER` in
    `env` defines the order of the numbers."""
    lifeline: int | None = None
    """A socket of this process. The machine ends when the other end is closed. A byte on the socket
    means that no controller is left."""
    options: object = None
    """Options that only one provider understands: a mapping, or its own options object."""
    host: "Host | None" = None
    """The host that has the spec's paths; see `Provider.host`."""
    network: Network = "none"
    isolation: BackendName | Literal["auto"] = "auto"
    lease: float = 60.0
    timeout: float | None = None
    idle_timeout: float | None = None
    start_timeout: float = 600.0


def write_spec(spec: MachineSpec) -> dict[str, object]:
    """A spec as plain data, without the fields that have no meaning on another host."""
    left_out = {"gates", "relayed", "options", "host", "devices", "lifeline", "kept_secrets"}
    values: dict[str, object] = {
        field.name: getattr(spec, field.name)
        for field in fields(spec)
        if field.name not in left_out
    }
    values["env"], values["path_env"] = dict(spec.env), dict(spec.path_env)
    values["mounts"] = [(str(m.source), m.target, m.writable) for m in spec.mounts]
    for name in ("workdir", "python_env"):
        path: Path | None = getattr(spec, name)
        values[name] = str(path) if path is not None else None
    return values


def read_spec(given: Mapping[str, Any]) -> MachineSpec:
    """Read the output of `write_spec`."""
    values = dict(given)
    values["mounts"] = tuple(
        Mount(Path(source), target, writable=writable)
        for source, target, writable in values["mounts"]
    )
    for name in ("workdir", "python_env"):
        values[name] = Path(values[name]) if values[name] is not None else None
    if not isinstance(values["network"], str):
        values["network"] = tuple(values["network"])
    return MachineSpec(**values)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The paths of a machine's folders, as its programs see them."""

    workdir: str
    home: str
    tmp: str
    run: str
    """A folder for sockets, shared by everything in the machine."""
    models: str
    python: str
    """The interpreter for programs. It has the spec's `python_env`."""
    packages: str | None = None
    """The virtual environment into which pip installs; None if nothing can be installed."""


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    """How a command ended. A non-zero exit code is not an exception."""

    exit_code: int
    """Negative: ended by that signal."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """Killed, with its whole process tree, because the timeout passed; the output is partial."""
    truncated: bool = False
    """A stream was longer than the capture limit; it ends with a line that says so."""


@dataclass(frozen=True, kw_only=True)
class FileStatus:
    """One file of a machine."""

    name: str
    """The name without its folder. Bytes that are not UTF-8 are surrogate escapes, as in
    `os.fsdecode`."""
    kind: FileKind
    size: int
    mode: int
    """Permission bits."""
    mtime: float


@dataclass(frozen=True)
class TerminalSize:
    """The size of the terminal that a command runs in."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, kw_only=True)
class MachineStatus:
    """One line of a listing."""

    id: str
    provider: str
    label: str
    started_at: float
    gpu: str | None
    detached: bool
    controller_alive: bool
    paused: bool = False
    cost_usd: float | None = None
    """The cost so far, if the provider states a price."""
