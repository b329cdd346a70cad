"""The interface of a jail backend, what it returns for spawning a jail, and what backends share."""

import errno
import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from seer.errors import IsolationError, IsolationUnavailableError
from seer.isolation._policy import BackendName, Mount, Policy

Need = Literal["hidden", "proxy", "users"]
"""What a caller can require of a backend: that a model's origin stays hidden (`hidden`), a network
whose only way out is the filtering proxy (`proxy`), several users in one jail (`users`)."""

_TRIAL_TIMEOUT = 30.0
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to spawn one jail, once.

    Spawn `argv` with exactly `env` and `pass_fds`, under the same numbers, then call `close()`.
    `argv` and `env` hold no secrets: those travel in the descriptors.

    The jail ends with the thread that spawns it, so spawn it from a long-lived thread.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    pass_fds: tuple[int, ...]
    own_fds: list[int] = field(default_factory=list[int], repr=False)
    """Those of `pass_fds` that this launch owns and `close` closes."""

    def close(self) -> None:
        """Close this launch's own descriptors in this process. Closing twice is harmless."""
        while self.own_fds:
            os.close(self.own_fds.pop())


class Backend(ABC):
    """A way to jail a process tree."""

    name: BackendName
    refusals: Mapping[Need, str] = {}
    """The needs that this backend cannot meet, each with the reason and the fix."""
    _works: bool = False

    @property
    def covers(self) -> bool:
        """Whether a mount can cover a part of another one, and so hide that part."""
        return False

    def unavailable(self) -> str | None:
        """Why this backend cannot be used here, with the fix; None when it works.

        The first call may run a real jail. A success is remembered until this process ends.

        Raises:
            IsolationUnavailableError: It could not be tried for lack of a resource. It may well
                work, so a weaker backend must not take its place.
        """
        if self._works:
            return None
        reason = self.probe()
        self._works = reason is None
        return reason

    @abstractmethod
    def probe(self) -> str | None:
        """Try this backend; see `unavailable`."""

    def refuses(self, need: Need) -> str | None:
        """Why this backend must not be used for `need`; None if it can be."""
        return self.refusals.get(need)

    def view(self, mounts: Sequence[Mount]) -> dict[str, str]:
        """Each mount's target -> the path under which programs in the jail see it.

        The default is for jails that see the host's own paths.
        """
        return {mount.target: os.path.realpath(mount.source) for mount in mounts}

    @abstractmethod
    def launch(self, policy: Policy, argv: Sequence[str]) -> Launch:
        """Prepare to run `argv` as the first process of a jail.

        Args:
            policy: All that the jail may see and use.
            argv: The program (by its path in the jail) and its arguments. The host's process list
                shows them, so they must hold no secrets.

        Raises:
            IsolationError: This backend cannot enforce the policy.
        """

    def run_trial(self, argv: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
        """Run a program in a jail with an empty policy, to its end.

        Raises:
            IsolationError: The jail did not run.
            IsolationUnavailableError: It did not run for lack of processes, memory or descriptors,
                or in time.
        """
        launch = self.launch(Policy(), argv)
        try:
            done = subprocess.run(
                launch.argv,
                env=launch.env,
                pass_fds=launch.pass_fds,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TRIAL_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise self._shortage(str(error)) from None
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise self._shortage(str(error)) from None
            raise IsolationError(f"a trial jail did not run: {error}") from None
        finally:
            launch.close()
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode != 0 and any(os.strerror(number) in said for number in _SHORTAGES):
            raise self._shortage(said)
        return done

    def _shortage(self, said: str) -> IsolationUnavailableError:
        return IsolationUnavailableError(
            f"{self.name} could not be tried, so nothing was started: {said}. This user has too"
            " many processes for another jail, or the host lacks memory: end some, or wait until"
            " other sandboxes have ended"
        )


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
    # pwrite does not move the position, so the reader begins at the start.
    while offset < len(view):
        offset += os.pwrite(fd, view[offset:], offset)
    return fd
