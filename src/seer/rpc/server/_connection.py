"""One connection of a caller: it reads requests, passes them to the gate and sends answers.

The leading thread reads. The thread that has an answer writes it directly to the socket. A
connection carries one request at a time: a peer that sends another one before it has its answer is
disconnected.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from seer.rpc.wire._descriptors import LOST, SPACE, close_all, received
from seer.rpc.wire._http import HeadCache, Request, WireError
from seer.rpc.wire._protocol import MAX_DESCRIPTORS, MAX_HEAD

from ._socket import NonBlockingSocket

if TYPE_CHECKING:
    import socket

    from seer.rpc.wire._memory import SlotPool

    from ._callers import Caller
    from ._calls import Call
    from ._gate import Gate
    from ._loop import Loop


_READ_SIZE = 65536
_READ_AT_ONCE = 4 << 20
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(NonBlockingSocket):
    """A connected socket of `caller`.

    Attributes:
        call: The call on this connection that has no answer yet.
        busy: Whether a request is in progress.
        reserved: The announced size of a body that has not arrived completely.
    """

    def __init__(
        self, connected: socket.socket, caller: Caller, loop: Loop, gate: Gate, max_body: int
    ) -> None:
        super().__init__(connected, loop)
        self.caller = caller
        self.call: Call | None = None
        self.busy = False
        self.reserved = 0
        self.descriptors: list[int] = []
        self.pool: SlotPool | None = None
        self.slot_calls: dict[int, str] = {}
        self._gate = gate
        self._buffer = b""
        self._heads = HeadCache(max_body)
        self._request: Request | None = None
        self._body: bytearray | None = None
        self._filled = 0

    @property
    def partial(self) -> bool:
        """Whether a part of a request has been read, and the rest is awaited."""
        return not self.closing and (self._body is not None or bool(self._buffer))

    def on_readable(self) -> int | None:
        """Read; on the leading thread.

        Returns:
            How many bytes of a request were read whose end has not come.
        """
        try:
            if self._body is not None:
                return self._read_body()
            data, ancillary, flags, _ = self.socket.recvmsg(_READ_SIZE, SPACE)
            if ancillary or flags:
                self._take_descriptors(ancillary, flags)
                if self.busy or self.closing:
                    self.drop_descriptors()
            if not data:
                self.close()
            elif self.busy:
                raise WireError("a second request arrived before the first was answered")
            elif not self.closing:
                if self._buffer:
                    data = self._buffer + data
                body = self._heads.again(data)
                if body is None or self.descriptors:
                    return self._take(data, len(data) - len(self._buffer))
                request = self._heads.request
                self._buffer = b""
                self.busy = True
                self._gate.handle(self, request, body)
        except WireError as error:
            # What still comes of the request is dropped.
            self._body = None
            self._buffer = b""
            self._gate.refuse(self, error)
        except BlockingIOError:
            return None
        except OSError:
            self.close()
        except Exception:
            # A bug in the gate itself must cost only this connection.
            import traceback

            sys.stderr.write(traceback.format_exc())
            self.close()
        return None

    def _take(self, data: bytes, new: int) -> int:
        """Read a request whose first bytes are `data`, the last `new` of them just now."""
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
        if end < 0:
            if len(data) >= MAX_HEAD:
                raise WireError(f"the head has more than {MAX_HEAD} bytes", 431)
            self._buffer = data
            return new
        self._buffer = b""
        request = self._heads.parse(data[:end])
        end += 4
        have = len(data) - end
        if have == request.length:
            if self.descriptors or request.memfds:
                self._check_descriptors(request)
            self.busy = True
            self._gate.handle(self, request, data[end:])
        elif have > request.length:
            raise WireError("the body has more bytes than content-length says")
        else:
            self._start_body(request, data[end:])
        return new

    def _start_body(self, request: Request, first: bytes) -> None:
        self._gate.reserve(self, request)
        if request.expects and not first:
            self.send(_CONTINUE)
        self._request = request
        # The buffer grows as bytes arrive: announcing a large body must not allocate memory.
        self._body = bytearray(max(len(first), min(request.length, _READ_AT_ONCE)))
        self._body[: len(first)] = first
        self._filled = len(first)

    def _read_body(self) -> int:
        body = self._body
        request = self._request
        assert body is not None
        assert request is not None
        if self._filled == len(body):
            body.extend(bytes(min(len(body), request.length - len(body))))
        room = memoryview(body)[self._filled : self._filled + _READ_AT_ONCE]
        if request.memfds:
            got, ancillary, flags, _ = self.socket.recvmsg_into([room], SPACE)
            if ancillary or flags:
                self._take_descriptors(ancillary, flags)
        else:
            got = self.socket.recv_into(room)
        room.release()
        if not got:
            self.close()
            return 0
        self._filled += got
        if self._filled == request.length:
            self._body = None
            self._request = None
            self._gate.unreserve(self)
            self._check_descriptors(request)
            self.busy = True
            self._gate.handle(self, request, body)
        return got

    def _check_descriptors(self, request: Request) -> None:
        if len(self.descriptors) != request.memfds:
            raise WireError(
                f"{len(self.descriptors)} descriptors came, but seer-memfds says {request.memfds}"
            )

    def _take_descriptors(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        self.descriptors += received(ancillary)
        if len(self.descriptors) > MAX_DESCRIPTORS:
            raise WireError(f"more than {MAX_DESCRIPTORS} descriptors came")
        if flags & LOST:
            raise WireError("the gate has too many open files to take arrays by descriptor", 503)

    def drop_descriptors(self) -> None:
        """Close the descriptors of a request that is not handled."""
        close_all(self.take_descriptors())

    def take_descriptors(self) -> list[int]:
        """Remove the descriptors of the request; the taker closes them."""
        taken, self.descriptors = self.descriptors, []
        return taken

    def on_clogged(self, clogged: bool) -> None:
        """Note for the caller whether this peer leaves bytes unread."""
        if clogged:
            self.caller.clogged.add(self)
        else:
            self.caller.clogged.discard(self)

    def on_closed(self) -> None:
        """Drop a partial request, and tell the gate."""
        self._body = None
        self.drop_descriptors()
        self._gate.unreserve(self)
        self._gate.lost(self)
