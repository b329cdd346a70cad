"""The interface of a jail backend, and what it returns for spawning a jail. No backend here."""

import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from seer.isolation._policy import BackendName, Mount, Policy

Need = Literal["hidden", "proxy", "users"]
"""What a use demands of a backend beyond the common ground: GPU devices that work (`gpu`), that a
model's origin stays hidden (`hidden`), a network whose only way out is the filtering proxy
(`proxy`), several users in one jail (`users`)."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to spawn one jail, once.

    Spawn `argv` with exactly `env` and `pass_fds` (the numbers must be kept), then `close()`.
    Nothing secret stands in `argv` or `env`: it travels in the descriptors.

    The jail ends with the thread that spawns it, so that has to be one that lasts.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    pass_fds: tuple[int, ...]
    view: Mapping[str, str]
    """Each mount's target -> the path under which programs in the jail see it."""
    own_fds: list[int] = field(default_factory=list[int], repr=False)
    """Those of `pass_fds` that belong to this launch and not to the policy, until `close`."""

    def close(self) -> None:
        """Close this launch's own descriptors in this process. Twice is harmless."""
        while self.own_fds:
            os.close(self.own_fds.pop())


class Backend(ABC):
    """A way to jail a process tree."""

    name: BackendName

    @property
    def covers(self) -> bool:
        """Whether a mount can lie on top of a part of another one, and so hide that part."""
        return False

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why this backend cannot be used here, with the fix; None when it works.

        The first call runs a real jail; that it works is remembered for the life of this process.
        """

    @abstractmethod
    def refuses(self, need: Need) -> str | None:
        """Why this backend must not be used where `need` matters; None when it may be."""

    @abstractmethod
    def view(self, mounts: Sequence[Mount]) -> dict[str, str]:
        """Each target -> where programs in the jail see it; what `Launch.view` will say."""

    @abstractmethod
    def launch(self, policy: Policy, argv: Sequence[str]) -> Launch:
        """Prepare to run `argv` as the first process of a jail.

        Args:
            policy: All that the jail may see and use.
            argv: The program (by its path in the jail) and its arguments. They are visible in
                the host's process list, so no secrets.

        Raises:
            IsolationError: The policy asks for something this backend cannot keep.
        """


def in_view(view: Mapping[str, str], path: str) -> str:
    """`path` as the jail sees it: translated by the mount it lies in, else as it is."""
    best = ""
    for target in view:
        inside = path == target or path.startswith(target.rstrip("/") + "/")
        if inside and len(target) > len(best):
            best = target
    return view[best] + path[len(best.rstrip("/")) :] if best else path


def memory_file(name: str, content: bytes) -> int:
    """A descriptor that reads as `content`; the caller closes it."""
    if not sys.platform.startswith("linux"):
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            return os.dup(file.fileno())
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(content)
    offset = 0
    # pwrite leaves the position at the start, where the reader begins.
    while offset < len(view):
        offset += os.pwrite(fd, view[offset:], offset)
    return fd
