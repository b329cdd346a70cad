"""What a jail may see and use: one frozen description for every backend."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

BackendName = Literal["bubblewrap", "container", "landlock", "none"]

JailNetwork = Literal["none", "proxy", "host"]
"""`proxy`: a network namespace of its own, whose only way out is the proxy's Unix socket."""


@dataclass(frozen=True, kw_only=True)
class JailLimits:
    """Bounds on everything that runs in one jail; None means unbounded."""

    memory: int | None = None
    """Bytes, summed over the process tree."""
    processes: int | None = None
    """Processes and threads, summed over the tree."""
    open_files: int | None = None
    file_size: int | None = None
    """Bytes in each file."""
    disk: int | None = None
    """Bytes, summed over the writable mounts."""
    cpu_seconds: int | None = None
    """CPU seconds of each process."""
    memory_files: bool = True
    """Whether programs may create memory files and segments. They belong to no process, so only a
    control group counts them."""
    keep_cores: bool = False
    """Keep programs on the CPUs that they were started on."""
    share: float = 0.25
    """The part of a user's limits (descriptors in flight, pending signals, message queues,
    processes, file watches) that all its jails share, if the user also runs other programs."""


@dataclass(frozen=True)
class Mount:
    """A file or folder of the host, and where it appears in the jail.

    No jail may write to the folders above `source`, or it could replace what is mounted. Programs
    in a jail may learn `source` from the mount table. If they must not, give `source` a neutral
    name.
    """

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class Users:
    """Several users in one jail, each of them an unprivileged user of the host.

    The jail's first program is root in its own user namespace, with the few capabilities that it
    needs to change files and users. The agent's programs run as user 1000.
    """

    root: int
    """The host's id for the jail's root."""
    others: tuple[int, ...]
    """The host's ids for the jail's 1001, 1002 and so on."""
    etc: Path
    """A folder that becomes the jail's /etc, and belongs to its root."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Everything that a jail may see. Anything not listed here is invisible."""

    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The whole environment; nothing is inherited."""
    cwd: str = "/"
    network: JailNetwork = "none"
    gpu: bool = False
    """Pass the machine's GPU devices through."""
    limits: JailLimits = JailLimits()
    pass_fds: tuple[int, ...] = ()
    """Descriptors that the first process in the jail inherits under the same numbers."""
    uid: int | None = None
    """As root: the unprivileged user to become. None picks the backend's default."""
    users: Users | None = None
    """Further users, only for bubblewrap jails that root starts."""
