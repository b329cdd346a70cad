"""The callers' listening sockets, which stay open while the interface is restarted.

A running interface process accepts connections itself. While there is none, the supervisor does: it
sends one answer over each connection, and closes it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from seer.rpc.wire._http import Request, head_prefix

from ._http_server import HttpConnection
from ._socket import read_arrived

if TYPE_CHECKING:
    from ._config import CallerConfig
    from ._poller import Poller

    Handler = Callable[[HttpConnection, Request, str], None]
    """Answers a request of the caller of this name."""


BACKLOG = 1024
"""Connections that wait to be accepted."""


def listen(path: str, mode: int) -> socket.socket:
    """A listening, non-blocking Unix socket at `path`; an existing file is replaced.

    Raises:
        OSError: The folder does not exist or cannot be written to.
    """
    folder, name = os.path.split(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # An address may have 107 bytes. A path through a descriptor of its folder is short.
        fd = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            short = f"/proc/self/fd/{fd}/{name}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(short)  # noqa: PTH108 (import time)
            listener.bind(short)
            os.chmod(short, mode)  # noqa: PTH101 (import time)
        finally:
            os.close(fd)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


MAX_WAITING = 256
"""Connections without a request that are kept open here."""


class CallerSockets:
    """Listens for all callers.

    Args:
        poller: Reports connections and requests.
        handler: Answers a request.
        epoch: Gives the epoch for the answers.
        most: How many callers there can be at a time.

    Attributes:
        callers: Number, configuration and listening socket of each caller, by name.
        names: The name of the last caller of each number, also if that was removed: calls of it may
            still run.
    """

    def __init__(
        self, poller: Poller, handler: Handler, epoch: Callable[[], str], *, most: int
    ) -> None:
        self.callers: dict[str, tuple[int, CallerConfig, socket.socket]] = {}
        self.names: dict[int, str] = {}
        self._most = most
        self._next = 0
        self._freed: deque[int] = deque()
        """The numbers of removed callers, in the order of their removal."""
        self._poller = poller
        self._handler = handler
        self._epoch = epoch
        self._answering = False
        self._waiting: dict[HttpConnection, None] = {}
        """Connections without a request, oldest first."""

    def add(self, config: CallerConfig) -> int:
        """Make a socket for a caller, and return the caller's number.

        A number is reused as late as possible: a function of the removed caller may still run, and
        is charged to that number.

        Raises:
            OSError: The socket cannot be made.
            ValueError: There is a caller of that name, or there are too many.
        """
        if config.name in self.callers:
            raise ValueError(f"there is a caller {config.name!r} already")
        if self._next == self._most and not self._freed:
            raise ValueError(f"there are {self._most} callers already, which is the maximum")
        listener = listen(config.socket, 0o666)
        if self._next < self._most:
            index = self._next
            self._next += 1
        else:
            index = self._freed.popleft()
        self.callers[config.name] = (index, config, listener)
        self.names[index] = config.name
        if self._answering:
            self._watch(config.name, listener)
        return index

    def remove(self, name: str) -> None:
        """Close a caller's socket."""
        found = self.callers.pop(name, None)
        if found is None:
            return
        index, config, listener = found
        self._freed.append(index)
        self._poller.unwatch(listener.fileno())
        listener.close()
        with contextlib.suppress(OSError):
            os.unlink(config.socket)  # noqa: PTH108 (import time)

    def read_arrived(self, names: Iterable[str]) -> None:
        """Answer the requests of some callers that have already arrived."""
        if not self._answering:
            return
        for name in names:
            found = self.callers.get(name)
            if found is not None:
                read_arrived(self._waiting)
                for _ in range(2 * BACKLOG):
                    connection = self._accept(name, found[2])
                    if connection is None:
                        break
                    # At once: a further connection may close the oldest one that waits.
                    read_arrived((connection,))

    def forget(self) -> None:
        """In a forked process: close what only the supervisor uses."""
        for waiting in self._waiting:
            waiting.socket.close()

    def answer(self, answering: bool) -> None:
        """Answer on the sockets, or leave them to the interface process."""
        if answering == self._answering:
            return
        self._answering = answering
        for name, (_, _, listener) in self.callers.items():
            if answering:
                self._watch(name, listener)
            else:
                self._poller.unwatch(listener.fileno())

    def _watch(self, caller: str, listener: socket.socket) -> None:
        self._poller.watch(
            listener.fileno(), select.EPOLLIN, lambda _: self._accept(caller, listener)
        )

    def _accept(self, caller: str, listener: socket.socket) -> HttpConnection | None:
        """Accept a connection; None if none can be accepted."""
        try:
            connected, _ = listener.accept()
        except OSError:
            return None
        if len(self._waiting) >= MAX_WAITING:
            # Close the oldest one. It has sent no request; those that have sent one are answered.
            next(iter(self._waiting)).close()
        connection = HttpConnection(
            connected,
            self._poller,
            lambda connection, request, _: self._handler(connection, request, caller),
            prefix=head_prefix(self._epoch()),
            once=True,
            on_close=lambda closed: self._waiting.pop(closed, None),
        )
        self._waiting[connection] = None
        return connection
