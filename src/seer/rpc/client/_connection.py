"""One connection to the gate: requests, responses, and the shared memory that came over it.

`exchange` and `read_some` are steps (see `_drive`), for blocking and for non-blocking sockets.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import GateBusyError, ProtocolError
from ..wire._descriptors import LOST, SPACE, close_all, received, rights
from ..wire._polling import BriefPolling
from ..wire._protocol import CANNOT_PASS, WireError
from ._drive import Wait, drive
from ._mappings import Mapping
from ._responses import Response, ResponseReader

if TYPE_CHECKING:
    from ._drive import Steps

    Received = tuple[bytes, list[tuple[int, int, bytes]], int]

_READ_SIZE = 65536
_monotonic = time.monotonic
SILENCE = 600.0
"""Seconds of silence after which a gate counts as gone. A gate sends something every 10 seconds."""


class CannotPass(Exception):
    """The kernel passes no more descriptors for this user just now; nothing was sent."""


class Connection:
    """One connected socket.

    Attributes:
        blocking: Whether its socket blocks, for `drive`. If not, it is for `adrive`, in any loop.
        released: Slots whose arrays are gone. The next request tells the gate.
        sent: Whether the gate may have received the request that was last sent.
        closing: Whether the gate has said that it closes this connection.
    """

    __slots__ = (
        "_mappings",
        "_polling",
        "_reader",
        "_timeout",
        "_usual",
        "blocking",
        "closing",
        "released",
        "sent",
        "socket",
    )

    def __init__(self, connected: socket.socket, *, blocking: bool = True) -> None:
        self.socket = connected
        self.blocking = blocking
        self.released: deque[int] = deque()
        self.sent = False
        self.closing = False
        self._usual = b""
        self._reader = ResponseReader()
        self._mappings: dict[int, Mapping] = {}
        self._timeout = 0.0
        poll = select.poll()
        poll.register(connected.fileno(), select.POLLIN)
        self._polling = BriefPolling(partial(poll.poll, 0))
        if blocking:
            self._wait_at_most(SILENCE)
        else:
            connected.setblocking(False)

    def _wait_at_most(self, seconds: float) -> None:
        """Let a blocking socket give up reading after this many seconds without a byte."""
        if seconds != self._timeout:
            self._timeout = seconds
            whole = max(seconds, 0.001)
            packed = struct.pack("ll", int(whole), int(whole % 1 * 1_000_000))
            # Set on the socket, because Python's own timeouts add a system call to every read.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)

    def exchange(
        self, parts: list[Any], descriptors: list[int], patience: float = SILENCE
    ) -> Steps[Response]:
        """Send a request and wait for its response (for a stream: the head of the response).

        Args:
            parts: The bytes of the request.
            descriptors: Descriptors that travel with its first byte.
            patience: Seconds to wait for the next byte of the response.

        Raises:
            CannotPass: The descriptors cannot be passed just now; nothing was sent.
            OSError: The connection is gone; `sent` says whether the request may have arrived.
            TimeoutError: Nothing came for as long as `patience`.
            WireError: What came is not a response.
        """
        if self.blocking:
            self._wait_at_most(patience)
        self.sent = False
        try:
            if self.blocking and len(parts) == 1 and not descriptors:
                self.socket.sendall(parts[0])
            else:
                yield from self._send(parts, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            # A gate that refuses a large request answers before it has read all of it.
            try:
                return (yield from self._read(1.0))
            except (OSError, WireError):
                pass
            raise
        self.sent = True
        if self.blocking:
            self._polling.events()
        return (yield from self._read(patience))

    def exchange_small(self, message: bytes) -> bytes | Response:
        """`exchange` for a small request without descriptors, on a socket that blocks.

        Returns:
            The text of the usual response: one without buffers, read at once, with the same head
            as the last one except for its length. Otherwise the response.
        """
        if self._timeout != SILENCE:
            # The last call had a deadline, which does not apply to this one.
            self._wait_at_most(SILENCE)
        connected = self.socket
        self.sent = False
        connected.sendall(message)
        self.sent = True
        self._polling.events()
        data, ancillary, flags, _ = connected.recvmsg(_READ_SIZE, SPACE)
        head, _, text = data.partition(b"\r\n\r\n")
        if head == b"%s%d" % (self._usual, len(text)) and not ancillary:
            return text
        response = drive(self._read(SILENCE, (data, ancillary, flags)))
        known = self._reader.known.get(b"200")
        if known is not None:
            self._usual = known[0]
        return response

    def _send(self, parts: list[Any], descriptors: list[int]) -> Steps[None]:
        first = True
        for part in parts:
            view = memoryview(part).cast("B")
            while len(view):
                try:
                    sent = self._send_with(view, descriptors) if first else self.socket.send(view)
                except BlockingIOError:
                    yield Wait(SILENCE, self.socket.fileno(), write=True)
                    continue
                first = False
                view = view[sent:]

    def _send_with(self, data: memoryview, descriptors: list[int]) -> int:
        """Send bytes, with descriptors on the first, and return how many bytes were sent.

        Raises:
            CannotPass: Descriptors cannot be passed just now.
        """
        try:
            return self.socket.sendmsg([data], rights(descriptors))
        except OSError as error:
            if descriptors and error.errno in CANNOT_PASS:
                raise CannotPass from None
            raise

    def _read(self, patience: float, first: Received | None = None) -> Steps[Response]:
        """Read one response; `first` is the part that was received before."""
        reader = self._reader
        connected = self.socket
        descriptors: list[int] = []
        response: Response | None = None
        until = 0.0
        while response is None:
            try:
                room = reader.room
                if room is not None:
                    count = connected.recv_into(room)
                    if not count:
                        raise ConnectionResetError("the gate closed the connection")
                    response = reader.filled(count)
                else:
                    if first is None:
                        data, ancillary, flags, _ = connected.recvmsg(_READ_SIZE, SPACE)
                    else:
                        data, ancillary, flags = first
                        first = None
                    if ancillary or flags:
                        descriptors += received(ancillary)
                        if flags & LOST:
                            close_all(descriptors)
                            raise _not_received("this process has too many open files")
                    if not data:
                        raise ConnectionResetError("the gate closed the connection")
                    response = reader.feed(data)
                until = 0.0
            except BlockingIOError:
                until = until or _monotonic() + patience
                yield Wait(until - _monotonic(), connected.fileno())
        if response.slots or descriptors or response.dropped:
            self._map(response, descriptors)
        self.closing = response.close
        return response

    def _map(self, response: Response, descriptors: list[int]) -> None:
        if len(response.slots) != len(descriptors):
            close_all(descriptors)
            raise WireError(f"{len(descriptors)} descriptors came for {len(response.slots)} slots")
        for slot in response.dropped:
            # It was released before, so no array uses it.
            self._mappings.pop(slot, None)
        left = list(descriptors)
        try:
            for slot, size in response.slots:
                self._mappings[slot] = Mapping(slot, left.pop(0), size)
        except OSError as error:
            close_all(left)
            raise _not_received(str(error)) from None

    def buffers(self, response: Response) -> list[Any]:
        """The buffers of a response, as objects with the buffer protocol.

        Raises:
            ProtocolError: One refers to memory that this side does not have.
        """
        lent: dict[int, Any] = {}
        found: list[Any] = []
        inline = memoryview(response.body)
        for piece in response.pieces:
            if piece.place == "i":
                found.append(piece.cut(inline))
                continue
            mapping = self._mappings.get(piece.index) if piece.place == "s" else None
            if mapping is None or piece.offset + piece.size > mapping.size:
                raise ProtocolError("the gate's answer refers to memory that was not sent")
            base = lent.get(piece.index)
            if base is None:
                base = lent[piece.index] = mapping.lend(self.released)
            found.append(_part(base, piece.offset, piece.size))
        return found

    def read_some(self) -> Steps[bytes]:
        """Read the next bytes of a stream.

        Raises:
            OSError: The connection is gone.
            TimeoutError: Nothing came for too long.
        """
        data = self._reader.take_rest()
        while not data:
            try:
                data = self.socket.recv(_READ_SIZE)
            except BlockingIOError:
                yield Wait(SILENCE, self.socket.fileno())
            else:
                if not data:
                    raise ConnectionResetError("the gate closed the connection")
        return data

    def take_released(self) -> list[int]:
        """Some of the slots that the gate must be told about."""
        slots: list[int] = []
        while self.released and len(slots) < 500:
            slots.append(self.released.popleft())
        return slots

    def close(self) -> None:
        """Close it. This cancels a call that has no answer yet."""
        self.socket.close()


def _part(base: Any, offset: int, size: int) -> Any:
    if hasattr(base, "dtype"):
        return base[offset : offset + size]
    import ctypes

    return (ctypes.c_ubyte * size).from_buffer(base, offset)


def _not_received(why: str) -> GateBusyError:
    return GateBusyError(
        f"the call was executed, but the arrays of its result could not be received: {why}"
    )
