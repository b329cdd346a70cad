"""A server that starts when its listening socket gets the first connection.

Most machines never use their network, and two more interpreters would use most of a machine's
memory.
"""

from __future__ import annotations

import os
import time

from . import tree
from .c_modules import accept_from, socket
from .jail import become
from .users import User, become_user

_QUICK = 1.0
_MOST_FAILURES = 5
_PAUSE = 10.0
"""Seconds between attempts once the program has failed quickly several times in a row."""


class LazyServer:
    """A listening socket, and the program that serves it on demand."""

    def __init__(
        self,
        listener: int,
        argv: list[bytes],
        *,
        env: dict[bytes, bytes],
        passed: list[int],
        user: int = 0,
    ) -> None:
        """Describe the server.

        Args:
            listener: The socket, which the program inherits.
            argv: The program. Its standard input closes when this process ends.
            env: The program's environment.
            passed: Further descriptors that the program inherits.
            user: The user id of the program; 0 for this process's user.
        """
        self._listener = listener
        self._argv = argv
        self._env = env
        self._passed = [listener, *passed]
        self._user = user
        self.pid = 0
        self._held = -1
        self._started = 0.0
        self._failures = 0

    @property
    def fd(self) -> int:
        """The descriptor to poll; -1 while the program runs."""
        return self._listener if self.pid == 0 else -1

    def start(self) -> None:
        """Start the program, which accepts the waiting connection.

        Refuses the connection if no process can be started. After several quick failures of the
        program, also refuses connections for a while.
        """
        now = time.monotonic()
        if self._failures >= _MOST_FAILURES and now < self._started + _PAUSE:
            self._turn_away()
            return
        self._started = now
        life, held = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            for fd in (life, held):
                os.close(fd)
            self._turn_away()
            return
        if self.pid == 0:
            try:
                tree.die_with_parent()
                os.close(held)
                if self._user:
                    become_user(User(self._user, self._user))
                null = os.open("/dev/null", os.O_WRONLY)
                become(self._argv, self._env, stdin=life, stderr=null, passed=self._passed)
            finally:
                os._exit(126)
        os.close(life)
        self._held = held

    def _turn_away(self) -> None:
        listener = socket.socket(fileno=os.dup(self._listener))
        listener.setblocking(False)
        try:
            os.close(accept_from(listener))
        except OSError:
            pass  # The caller is gone.
        finally:
            listener.close()

    def ended(self, pids: dict[int, int]) -> None:
        """Handle children that have ended. If the program did, it can be started again."""
        if self.pid in pids:
            self.pid = 0
            os.close(self._held)
            quick = time.monotonic() - self._started < _QUICK
            self._failures = self._failures + 1 if quick else 0
