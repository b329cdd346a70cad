"""A stream socket that never blocks: it queues the bytes that it cannot send at once.

The gate's connections to callers, the front's connections to copies and the supervisor's control
connections are such sockets. The thread that runs the poller handles events. Any thread may send.
"""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import termios
from _thread import allocate_lock
from collections import deque
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from seer.rpc.wire._descriptors import close_all, rights
from seer.rpc.wire._protocol import CANNOT_PASS

if TYPE_CHECKING:
    from ._poller import Poller

_OUT = select.EPOLLOUT
_READ = select.EPOLLIN | select.EPOLLRDHUP
_INT = Struct("i")
_MAX_PARTS = 1000
"""Parts of one `sendmsg`; the kernel takes 1024."""


class NonBlockingSocket:
    """A connected socket. A subclass reads from it in `on_readable`.

    Attributes:
        socket: The socket.
        fd: Its descriptor.
        closed: Whether it is closed.
        closing: Whether it is closed once everything is sent.
        unsent: Bytes that wait until the peer reads.
        failed: Whether bytes could not be sent because the peer is gone.
    """

    def __init__(self, connected: socket.socket, poller: Poller) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.fd = connected.fileno()
        self.closed = False
        self.closing = False
        self.unsent = 0
        self.failed = False
        self._poller = poller
        self._paused = False
        self._out: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._lock = allocate_lock()
        poller.watch(self.fd, _READ, self.on_events)

    # --- what a subclass adds ----------------------------------------------------------------

    def on_readable(self) -> int | None:
        """Read from the socket, which may have nothing to read."""
        raise NotImplementedError

    def on_clogged(self, clogged: bool) -> None:
        """Called under the lock when bytes begin or cease to wait for the peer."""

    def on_refused(self) -> None:
        """Called when queued descriptors cannot be passed, so their message was dropped."""
        self.give_up()

    def on_closed(self) -> None:
        """Release what belongs to the socket; called once."""

    # --- events ------------------------------------------------------------------------------

    def on_events(self, events: int) -> None:
        """Handle what epoll reports."""
        if events & _OUT:
            self._flush()
            if self.closed or events == _OUT:
                return
        self.on_readable()

    def pause(self, paused: bool) -> None:
        """Stop reading, or continue."""
        with self._lock:
            if paused != self._paused and not self.closed:
                self._paused = paused
                self._watch()

    def _watch(self) -> None:
        mask = 0 if self._paused else _READ
        self._poller.epoll.modify(self.fd, mask | _OUT if self._out else mask)

    # --- sending -----------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes without waiting; they are dropped if the peer is gone."""
        with self._lock:
            if self.closed:
                return
            if not self._out:
                try:
                    data = data[self.socket.send(data) :]
                except BlockingIOError:
                    pass
                except OSError:
                    self.give_up()
                    return
            if data:
                self._queue(memoryview(data), ())

    def send_parts(self, parts: Sequence[bytes | bytearray], descriptors: Sequence[int]) -> None:
        """Send several parts, with descriptors on the first byte; otherwise like `send`.

        The socket owns the descriptors, and closes them once they are sent or cannot be sent.

        Raises:
            OSError: The kernel passes no more descriptors now (`CANNOT_PASS`); nothing was sent.
        """
        with self._lock:
            if self.closed:
                close_all(descriptors)
                return
            sent = 0
            if not self._out:
                try:
                    sent = self.socket.sendmsg(parts[:_MAX_PARTS], rights(descriptors))
                except BlockingIOError:
                    sent = 0
                except OSError as error:
                    close_all(descriptors)
                    if descriptors and error.errno in CANNOT_PASS:
                        raise
                    self.give_up()
                    return
                else:
                    close_all(descriptors)
                    descriptors = ()
            for part in parts:
                if sent >= len(part):
                    sent -= len(part)
                    continue
                self._queue(memoryview(part)[sent:], descriptors)
                descriptors = ()
                sent = 0

    def _queue(self, data: memoryview, descriptors: Sequence[int]) -> None:
        self._out.append((data, descriptors))
        self.unsent += len(data)
        if len(self._out) == 1:
            self._watch()
            self.on_clogged(True)

    def _flush(self) -> None:
        refused = False
        with self._lock:
            if self.closed:
                return
            try:
                while self._out:
                    data, descriptors = self._out[0]
                    sent = self.socket.sendmsg([data], rights(descriptors))
                    close_all(descriptors)
                    self.unsent -= sent
                    if sent < len(data):
                        self._out[0] = (data[sent:], ())
                        return
                    self._out.popleft()
            except BlockingIOError:
                return
            except OSError as error:
                data, descriptors = self._out[0]
                refused = bool(descriptors) and error.errno in CANNOT_PASS
                if refused:
                    close_all(descriptors)
                    self.unsent -= len(data)
                    self._out.popleft()
                else:
                    self.give_up()
                    self._drop_unsent()
            if not self._out:
                self.on_clogged(False)
                self._watch()
            finished = self.closing and not self._out
        if refused:
            self.on_refused()
        if finished:
            self.close()

    def wait_for_room(self, timeout: float) -> None:
        """Wait until more can be sent, for at most `timeout` seconds, and send it.

        For threads that send a long answer in pieces.
        """
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        if poll.poll(timeout * 1000):
            self._flush()

    # --- the end -----------------------------------------------------------------------------

    def give_up(self) -> None:
        """Shut down a connection over which nothing can be sent, so that the peer does not wait.

        The polling thread then reads the end of the stream and closes the socket.
        """
        self.failed = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _drop_unsent(self) -> None:
        while self._out:
            close_all(self._out.popleft()[1])
        self.unsent = 0

    def finish(self) -> None:
        """Close once everything is sent."""
        with self._lock:
            self.closing = True
            if self._out:
                return
        self.close()

    def close(self) -> None:
        """Close at once, on the polling thread. Closing twice is harmless."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._poller.unwatch(self.fd)
            self.socket.close()
            self._drop_unsent()
            self.on_clogged(False)
        self.on_closed()


class RequestSocket(Protocol):
    """A non-blocking socket over which requests come."""

    fd: int

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        ...

    @property
    def partial(self) -> bool:
        """Whether a part of a request has been read, and the rest is awaited."""
        ...

    def on_readable(self) -> int | None:
        """Read from the socket; may return how many bytes of a partial request were read."""
        ...


def read_arrived(sockets: Iterable[RequestSocket]) -> None:
    """Read the request of each socket that has arrived already; on the polling thread.

    What a peer sends meanwhile is left in the socket. Otherwise, a peer that sends as fast as this
    reads could keep the thread here, and its neighbours would wait.
    """
    for found in tuple(sockets):
        left = 0 if found.closed else _arrived(found.fd)
        while left > 0:
            got = found.on_readable()
            if found.closed or not found.partial or not got:
                break
            left -= got


def _arrived(fd: int) -> int:
    """How many bytes can be read from a socket at once."""
    (size,) = _INT.unpack(fcntl.ioctl(fd, termios.FIONREAD, bytes(_INT.size)))
    return size
