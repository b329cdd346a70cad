"""What machines are made from and described by: frozen data, no machinery."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seer.isolation import BackendName, Mount

if TYPE_CHECKING:
    from seer.providers._base import Host

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]
Network = Literal["full", "none", "host"] | tuple[str, ...]
"""`full`: internet through the filtering proxy; a tuple: those hosts only."""
FileKind = Literal["file", "folder", "link", "socket", "other"]


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    """What to start. Resources are wishes that the provider meets or refuses."""

    label: str = "sandbox"
    """What it is for, as people will see it in listings."""
    note: str = ""
    """Text that the machine keeps for a process that adopts it (`Machine.note`). No secrets."""
    gpu: str | None = None
    gpu_count: int = 1
    gpu_optional: bool = False
    """Whether another GPU, or none, will do on a host that has not what is asked for."""
    share_gpus: bool = False
    """Whether GPUs that others use will do where no free one is left."""
    cpus: float | None = None
    memory: int | None = None
    disk: int | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment of every command in the machine (runtime secrets included)."""
    kept_secrets: tuple[str, ...] = ()
    """Names of secrets that the provider keeps (`Provider.kept_secrets`); their variables are in
    the environment too."""
    path_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables that hold a path under a mount's target; they are set to the path
    that programs in the machine see it under (see `Machine.path`)."""
    serves: bool = False
    """It runs an interface for others, and no agent's code: it may use more of what the kernel
    counts per user, and make the shared memory in which arrays travel."""
    hidden: bool = False
    """A model's origin must stay hidden: only a backend that can keep that is used."""
    users: bool = False
    """Whether it has several users, among them a root; see `seer.isolation._policy.Users`."""
    mounts: tuple[Mount, ...] = ()
    """Paths of the machine's host to show in the machine; see `host`."""
    gates: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Sockets of served interfaces that this machine may talk to: name -> socket of this host."""
    relayed: frozenset[str] = frozenset()
    """Those of the gates that pass bytes on: descriptors do not go through, and lines break."""
    workdir: Path | None = None
    """A folder of its host that becomes the machine's working folder."""
    python_env: Path | None = None
    """A package environment of its host to put before the interpreter's own."""
    installs: bool = False
    """Whether programs in it can install packages beside those of `python_env`, for it alone."""
    python_version: str | None = None
    """The Python to have, such as `3.12`, where the provider builds an image for the machine."""
    system_packages: tuple[str, ...] = ()
    """The system's packages to have, where the provider builds an image for the machine."""
    devices: tuple[int, ...] | None = None
    """Which of the host's GPUs, by CUDA's number, where they were chosen already."""
    lifeline: int | None = None
    """A socket of this process. When its other end is gone, the machine ends; a byte that comes
    over it says that no controller lives any more."""
    options: object = None
    """What only one provider understands: a mapping, or its own options object."""
    host: "Host | None" = None
    """Where the spec's paths are, if its provider has said so (`Provider.host`)."""
    network: Network = "none"
    isolation: BackendName | Literal["auto"] = "auto"
    lease: float = 60.0
    timeout: float | None = None
    idle_timeout: float | None = None
    start_timeout: float = 600.0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where things are, as seen by programs in the machine."""

    workdir: str
    home: str
    tmp: str
    run: str
    """A folder for sockets, shared by everything in the machine."""
    models: str
    python: str
    """The interpreter to run programs with (has the spec's `python_env`)."""
    packages: str | None = None
    """The virtual environment into which pip installs; None where nothing can be installed."""


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    """How a command ended. A non-zero exit is a value here, never an exception."""

    exit_code: int
    """Negative: ended by that signal."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """Killed, with its whole process tree, because the timeout passed; the output is partial."""
    truncated: bool = False
    """A stream was longer than the capture limit; it ends with a mark that says so."""


@dataclass(frozen=True, kw_only=True)
class FileStatus:
    """One file of a machine."""

    name: str
    """Without its folder. Bytes that are not UTF-8 are surrogate escapes, as in `os.fsdecode`."""
    kind: FileKind
    size: int
    mode: int
    """Permission bits."""
    mtime: float


@dataclass(frozen=True)
class TerminalSize:
    """Makes a command run in a terminal of this size."""

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
    """What it has cost so far, where its provider has a price."""
