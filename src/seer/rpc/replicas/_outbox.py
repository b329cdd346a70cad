"""A socket between the front and a copy: what is sent leaves without waiting.

The front must never wait for one copy, which may be stopped or stuck, while others could answer.
Everything here happens on the leading thread.
"""

from __future__ import annotations

import array
import select
import socket
from collections import deque

from seer.rpc.wire._protocol import CANNOT_PASS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from seer.rpc.server._loop import Loop

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class Outbox:
    """One end of a socket pair. What comes in is the subclass's, which has `on_readable`.

    Attributes:
        unread: Whether the other end has certainly not read all that was sent last.
    """

    def __init__(self, end: socket.socket, loop: Loop) -> None:
        end.setblocking(False)
        self.socket = end
        self.closed = False
        self.unread = False
        self._fd = end.fileno()
        self._loop = loop
        self._out: deque[tuple[memoryview, list[int], socket.socket | None]] = deque()
        self._mask = _IN
        loop.watch(self._fd, _IN, self._on_events)

    @property
    def clear(self) -> bool:
        """Whether everything was sent."""
        return not self._out

    def send(
        self,
        data: bytes | bytearray,
        descriptors: Sequence[int] = (),
        given: socket.socket | None = None,
    ) -> None:
        """Send bytes, with descriptors on the first; a socket that is given away is closed here.

        Raises:
            OSError: Descriptors cannot be passed just now (`CANNOT_PASS`); nothing was sent.
        """
        if given is not None:
            descriptors = [given.fileno()]
        if self.closed:
            _close(given)
            return
        self._out.append((memoryview(data), list(descriptors), given))
        if len(self._out) == 1:
            self._flush()

    def _flush(self) -> None:
        out = self._out
        try:
            while out:
                data, descriptors, given = out[0]
                sent = self.socket.sendmsg([data], _rights(descriptors))
                _close(given)
                if sent < len(data):
                    out[0] = (data[sent:], [], None)
                else:
                    out.popleft()
        except BlockingIOError:
            self._watch(self._mask | _OUT)
            return
        except OSError as error:
            if out[0][1] and error.errno in CANNOT_PASS:
                _close(out.popleft()[2])
                raise
            # Its other end is gone, which reading tells as well.
            self.unread = True
            self._drop()
        self._watch(self._mask & ~_OUT)

    def pause(self, paused: bool) -> None:
        """Stop reading, or go on."""
        if not self.closed:
            self._watch(self._mask & ~_IN if paused else self._mask | _IN)

    def _watch(self, mask: int) -> None:
        if mask != self._mask:
            self._mask = mask
            self._loop.epoll.modify(self._fd, mask)

    def _on_events(self, events: int) -> None:
        if events & _OUT:
            try:
                self._flush()
            except OSError:
                self.on_refused()
        if not self.closed and events & ~_OUT:
            self.on_readable()

    def on_refused(self) -> None:
        """A message that waited could not be sent, because its descriptors cannot be passed.

        Here it was dropped; who holds the other end of the socket in it reads the end of that.
        """

    def on_readable(self) -> None:
        """Take what came; here, only its end is of interest."""
        try:
            if self.socket.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        """Close it; twice is harmless."""
        if not self.closed:
            self.closed = True
            self._loop.unwatch(self._fd)
            self.socket.close()
            self._drop()

    def _drop(self) -> None:
        while self._out:
            _close(self._out.popleft()[2])


def _close(given: socket.socket | None) -> None:
    if given is not None:
        given.close()


def _rights(descriptors: list[int]) -> list[tuple[int, int, array.array[int]]]:
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
