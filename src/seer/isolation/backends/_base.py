"""The interface of a jail backend, the launch that it returns, and code that backends share."""

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
"""What a caller can require of a backend: to keep a model's origin hidden (`hidden`), to let only
the filtering proxy reach the network (`proxy`), and to have several users in one jail (`users`)."""

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
    """The descriptors in `pass_fds` that this launch owns and `close` closes."""

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
        """Whether a mount can cover, and so hide, a part of another mount."""
        return False

    def unavailable(self) -> str | None:
        """Why this backend cannot be used here, and the fix; None if it works.

        The first call may run a real jail. A success is cached for the life of this process.

        Raises:
            IsolationUnavailableError: The backend could not be tried for lack of a resource. It may
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
        """Why this backend must not be used for `need`; None if it may be used."""
        return self.refusals.get(need)

    def view(self, mounts: Sequence[Mount]) -> dict[str, str]:
        """The path at which programs in the jail see each mount's target.

        The default is for jails that see the host's paths.
        """
        return {mount.target: os.path.realpath(mount.source) for mount in mounts}

    @abstractmethod
    def launch(self, policy: Policy, argv: Sequence[str]) -> Launch:
        """Prepare to run `argv` as the first process of a jail.

        Args:
            policy: Everything that the jail may see and use.
            argv: The program (by its path in the jail) and its arguments. The host's process list
                shows them, so they must hold no secrets.

        Raises:
            IsolationError: This backend cannot enforce the policy.
        """

    def run_trial(self, argv: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
        """Run a program to its end in a jail with an empty policy.

        Raises:
            IsolationError: The jail did not run.
            IsolationUnavailableError: The jail lacked processes, memory or descriptors, or did not
                finish in time.
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
    """A descriptor from which `content` can be read. The caller closes it."""
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
