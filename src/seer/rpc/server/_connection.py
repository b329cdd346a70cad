"""One connection of a caller: bytes in, whole requests out, answers back.

It reads on the leading thread only. Answers are written by whoever has them, straight to the
socket; what the socket does not take at once is left to the leading thread. There is one request
at a time on a connection: a peer that sends more before it has its answer is cut off.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import sys
from _thread import allocate_lock
from collections import deque

from seer.rpc.wire._http import HeadCache, Request, WireError
from seer.rpc.wire._protocol import CANNOT_PASS, MAX_DESCRIPTORS, MAX_HEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from seer.rpc.wire._memory import Pool

    from ._calls import Call, Caller
    from ._loop import Loop

    class Server(Protocol):
        """What a connection needs of what is behind it."""

        def handle(self, connection: Connection, request: Request, body: bytes | bytearray) -> None:
            """Work on a whole request and, sooner or later, answer it."""
            ...

        def reserve(self, connection: Connection, request: Request) -> None:
            """Agree to the body that a request announces, or raise `WireError`."""
            ...

        def unreserve(self, connection: Connection) -> None:
            """Forget what was reserved: the body has come, or never will."""
            ...

        def refuse(self, connection: Connection, error: WireError) -> None:
            """Answer a request that broke the protocol and finish the connection."""
            ...

        def lost(self, connection: Connection) -> None:
            """Forget the connection, which is closed."""
            ...


_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
READ = _IN | select.EPOLLRDHUP
_ANCILLARY = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
_READ_SIZE = 65536
_READ_AT_ONCE = 4 << 20
_MAX_PARTS = 1000
"""Parts of one message; the kernel takes 1024."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """A connected socket of `caller`.

    Attributes:
        call: The call that was made over it and has no answer yet.
        busy: Whether a request is being worked on.
        unsent: Bytes that wait until the peer reads.
        reserved: Bytes of a body that were announced and have not all come.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_filled",
        "_heads",
        "_lock",
        "_loop",
        "_out",
        "_request",
        "_server",
        "busy",
        "call",
        "caller",
        "closed",
        "closing",
        "descriptors",
        "fd",
        "pool",
        "reserved",
        "slot_calls",
        "socket",
        "unsent",
    )

    def __init__(
        self, connected: socket.socket, caller: Caller, loop: Loop, server: Server, max_body: int
    ) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.fd = connected.fileno()
        self.caller = caller
        self.call: Call | None = None
        self.busy = False
        self.closed = False
        self.closing = False
        self.unsent = 0
        self.reserved = 0
        self.descriptors: list[int] = []
        self.pool: Pool | None = None
        self.slot_calls: dict[int, str] = {}
        self._loop = loop
        self._server = server
        self._buffer = b""
        self._heads = HeadCache(max_body)
        self._request: Request | None = None
        self._body: bytearray | None = None
        self._filled = 0
        self._out: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._lock = allocate_lock()
        loop.watch(self.fd, READ, self.on_events)

    def on_events(self, events: int) -> None:
        """Handle what epoll reports; on the leading thread."""
        if events != _IN and events & _OUT:
            self._flush()
            if self.closed or events == _OUT:
                return
        try:
            if self._body is not None:
                self._read_body()
                return
            data, ancillary, flags, _ = self.socket.recvmsg(_READ_SIZE, _ANCILLARY)
            if ancillary or flags:
                self._take_descriptors(ancillary, flags)
                if self.busy or self.closing:
                    self.drop_descriptors()
            if not data:
                self.close()
            elif self.busy:
                raise WireError("a request came before the one before it was answered")
            elif not self.closing:
                if self._buffer:
                    data = self._buffer + data
                body = self._heads.again(data)
                if body is None or self.descriptors:
                    self._take(data)
                    return
                request = self._heads.request
                self._buffer = b""
                self.busy = True
                self._server.handle(self, request, body)
        except WireError as error:
            self._server.refuse(self, error)
        except OSError:
            self.close()
        except Exception:
            # A fault of the gate itself costs this connection, not the others.
            import traceback

            sys.stderr.write(traceback.format_exc())
            self.close()

    def _take(self, data: bytes) -> None:
        """Take the bytes of a request from its first on."""
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
        if end < 0:
            if len(data) >= MAX_HEAD:
                raise WireError(f"the head has more than {MAX_HEAD} bytes", 431)
            self._buffer = data
            return
        self._buffer = b""
        request = self._heads.parse(data[:end])
        end += 4
        have = len(data) - end
        if have == request.length:
            if self.descriptors or request.memfds:
                self._check_descriptors(request)
            self.busy = True
            self._server.handle(self, request, data[end:])
        elif have > request.length:
            raise WireError("more bytes came than content-length says")
        else:
            self._start_body(request, data[end:])

    def _start_body(self, request: Request, first: bytes) -> None:
        self._server.reserve(self, request)
        if request.expects and not first:
            self.send(_CONTINUE)
        self._request = request
        # It grows as bytes come: announcing a large body must cost the peer as much as us.
        self._body = bytearray(max(len(first), min(request.length, _READ_AT_ONCE)))
        self._body[: len(first)] = first
        self._filled = len(first)

    def _read_body(self) -> None:
        body = self._body
        request = self._request
        assert body is not None
        assert request is not None
        if self._filled == len(body):
            body.extend(bytes(min(len(body), request.length - len(body))))
        room = memoryview(body)[self._filled : self._filled + _READ_AT_ONCE]
        if request.memfds:
            got, ancillary, flags, _ = self.socket.recvmsg_into([room], _ANCILLARY)
            if ancillary or flags:
                self._take_descriptors(ancillary, flags)
        else:
            got = self.socket.recv_into(room)
        room.release()
        if not got:
            self.close()
            return
        self._filled += got
        if self._filled == request.length:
            self._body = None
            self._request = None
            self._server.unreserve(self)
            self._check_descriptors(request)
            self.busy = True
            self._server.handle(self, request, body)

    def _check_descriptors(self, request: Request) -> None:
        if len(self.descriptors) != request.memfds:
            raise WireError(
                f"{len(self.descriptors)} descriptors came, seer-memfds says {request.memfds}"
            )

    def _take_descriptors(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self.descriptors.extend(numbers)
        if len(self.descriptors) > MAX_DESCRIPTORS:
            raise WireError(f"more than {MAX_DESCRIPTORS} descriptors came")
        if flags & socket.MSG_CTRUNC:
            raise WireError("the gate has too many open files to take arrays by descriptor", 503)

    def drop_descriptors(self) -> None:
        """Close descriptors that came and are wanted by nobody."""
        for fd in self.take_descriptors():
            os.close(fd)

    def take_descriptors(self) -> list[int]:
        """The descriptors that came with the request; the taker closes them."""
        taken, self.descriptors = self.descriptors, []
        return taken

    def send(self, data: bytes) -> None:
        """Send bytes without waiting; on any thread. A connection that is gone swallows them."""
        with self._lock:
            if self.closed:
                return
            rest = data if self._out else self._offer(data)
            if rest:
                self._queue(memoryview(rest), ())

    def _offer(self, data: bytes) -> bytes:
        """Send what the socket takes at once; the rest. A broken connection takes all."""
        try:
            return data[self.socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            self._give_up()
            return b""

    def _give_up(self) -> None:
        """End a connection over which an answer cannot be sent, so that its peer does not wait.

        The leading thread reads the end of it and closes it.
        """
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def send_parts(self, parts: Sequence[bytes], descriptors: Sequence[int] = ()) -> bool:
        """Send several parts, with descriptors on the first byte; otherwise like `send`.

        The descriptors are this connection's from now on, and closed when they are sent.

        Returns:
            False, and nothing is sent, if the kernel passes no more descriptors just now.
        """
        with self._lock:
            if self.closed:
                _close_all(descriptors)
                return True
            sent = 0
            if not self._out:
                try:
                    sent = self.socket.sendmsg(parts[:_MAX_PARTS], _rights(descriptors))
                except BlockingIOError:
                    sent = 0
                except OSError as error:
                    _close_all(descriptors)
                    if descriptors and error.errno in CANNOT_PASS:
                        return False
                    self._give_up()
                    return True
                else:
                    _close_all(descriptors)
                    descriptors = ()
            for part in parts:
                if sent >= len(part):
                    sent -= len(part)
                    continue
                self._queue(memoryview(part)[sent:], descriptors)
                descriptors = ()
                sent = 0
        return True

    def _queue(self, data: memoryview, descriptors: Sequence[int]) -> None:
        if not self._out:
            self._loop.epoll.modify(self.fd, READ | select.EPOLLOUT)
            self.caller.clogged.add(self)
        self._out.append((data, descriptors))
        self.unsent += len(data)

    def _flush(self) -> None:
        with self._lock:
            try:
                while self._out:
                    data, descriptors = self._out[0]
                    sent = self.socket.sendmsg([data], _rights(descriptors))
                    _close_all(descriptors)
                    self.unsent -= sent
                    if sent < len(data):
                        self._out[0] = (data[sent:], ())
                        return
                    self._out.popleft()
            except BlockingIOError:
                return
            except OSError:
                self._give_up()
                self._drop_unsent()
            self.caller.clogged.discard(self)
            if not self.closed:
                self._loop.epoll.modify(self.fd, READ)
            finished = self.closing
        if finished:
            self.close()

    def wait_for_room(self, timeout: float) -> None:
        """Wait until more of what is unsent can be sent, at most so long, and send that.

        For threads that make a long answer piece by piece.
        """
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        if poll.poll(timeout * 1000):
            self._flush()

    def _drop_unsent(self) -> None:
        while self._out:
            _close_all(self._out.popleft()[1])
        self.unsent = 0

    def finish(self) -> None:
        """Close once everything is sent; nothing more is read."""
        with self._lock:
            self.closing = True
            if self._out:
                return
        self.close()

    def close(self) -> None:
        """Close at once; on the leading thread. Closing twice is harmless."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._loop.unwatch(self.fd)
            self.socket.close()
            self._drop_unsent()
            self._body = None
            self.caller.clogged.discard(self)
        self.drop_descriptors()
        self._server.unreserve(self)
        self._server.lost(self)


def _close_all(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _rights(descriptors: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
