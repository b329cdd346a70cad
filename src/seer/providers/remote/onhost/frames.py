"""Numbered frames over a wire that may break. Streams consist of such frames.

Both ends of a session use this module, which does no input or output. Each end numbers the frames
of streams, and keeps them until the other end acknowledges them. After the wire breaks, both ends
report how many frames they have received, and each sends the missing frames again. So no frame is
lost, repeated or reordered.

    head: kind (1 byte), stream (4), length (4); then the payload

`ACK`, `ATTACH`, `ATTACHED` and `BYE` belong to the wire and are not counted.
"""

from __future__ import annotations

import struct
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

OPEN, DATA, CREDIT, END, CLOSE, ACK, ATTACH, ATTACHED, BYE = range(1, 10)
"""OPEN: the payload is the target to connect to. END: no more data follows in this direction.
CLOSE: the stream has ended in both directions; a payload is an errno."""

INCOMING = 1 << 31
"""Streams that the host opens have numbers above this one."""
WINDOW = 1 << 20
"""The most bytes that a stream's writer may be ahead of its reader."""
CHUNK = 64 * 1024
"""The most bytes in a frame of data, so that streams take turns."""
FRAME_LIMIT = 1 << 20
TOKEN_BYTES = 16
_HEAD = struct.Struct(">BII")
_ATTACH = struct.Struct(f">{TOKEN_BYTES}sQBI")
_ATTACHED = struct.Struct(">BQ")
_COUNT = struct.Struct(">Q")
_CREDIT = struct.Struct(">I")
_ACK_FRAMES = 64
_ACK_BYTES = 256 * 1024


class FrameError(Exception):
    """The other end violates the protocol."""


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return _HEAD.pack(kind, stream, len(payload)) + payload


def attach(token: bytes, *, received: int, new: bool, beat: float) -> bytes:
    """The first frame on a wire, from the controller."""
    return frame(ATTACH, 0, _ATTACH.pack(token, received, new, int(beat * 1000)))


def read_attach(payload: bytes) -> tuple[bytes, int, bool, float]:
    """The token, the count of received frames, whether the session is new, the heartbeat period."""
    try:
        token, received, new, beat = _ATTACH.unpack(payload)
    except struct.error as error:
        raise FrameError(str(error)) from None
    return token, received, bool(new), beat / 1000


def attached(*, known: bool, received: int) -> bytes:
    """The answer to an ATTACH frame."""
    return frame(ATTACHED, 0, _ATTACHED.pack(known, received))


def read_attached(payload: bytes) -> tuple[bool, int]:
    """Whether the session is known, and how many of this end's frames it has received."""
    try:
        known, received = _ATTACHED.unpack(payload)
    except struct.error as error:
        raise FrameError(str(error)) from None
    return bool(known), received


def read_credit(payload: bytes) -> int:
    """The number of bytes that a CREDIT frame allows."""
    try:
        return int(_CREDIT.unpack(payload)[0])
    except struct.error as error:
        raise FrameError(str(error)) from None


def credit(stream: int, count: int) -> tuple[int, int, bytes]:
    """The parts of a CREDIT frame."""
    return CREDIT, stream, _CREDIT.pack(count)


class Splitter:
    """Cuts the bytes of a wire into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Add `data`, and yield the complete frames.

        Raises:
            FrameError: The data is not a frame.
        """
        rest = self._rest
        rest += data
        start = 0
        try:
            while len(rest) - start >= _HEAD.size:
                kind, stream, length = _HEAD.unpack_from(rest, start)
                if length > FRAME_LIMIT or not OPEN <= kind <= BYE:
                    raise FrameError(f"a frame of kind {kind} with {length} bytes")
                end = start + _HEAD.size + length
                if len(rest) < end:
                    break
                payload = bytes(rest[start + _HEAD.size : end])
                start = end
                yield kind, stream, payload
        finally:
            del rest[:start]


class Reliable:
    """One end of a session: its unacknowledged frames, and the number of received frames."""

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque()
        self._first = 0
        """The number of the oldest kept frame."""
        self.received = 0
        self._told = 0
        self._untold_bytes = 0

    def number(self, kind: int, stream: int, payload: bytes = b"") -> bytes:
        """Make a frame to send, and keep it until it is acknowledged."""
        made = _HEAD.pack(kind, stream, len(payload)) + payload
        self._kept.append(made)
        return made

    def took(self, payload: bytes) -> bool:
        """Count a received frame. Returns True if an `ack` is due."""
        self.received += 1
        self._untold_bytes += len(payload)
        return self.received - self._told >= _ACK_FRAMES or self._untold_bytes >= _ACK_BYTES

    def ack(self) -> bytes:
        """A frame that acknowledges all received frames. It is also the heartbeat."""
        self._told = self.received
        self._untold_bytes = 0
        return frame(ACK, 0, _COUNT.pack(self.received))

    def acknowledged(self, payload: bytes) -> None:
        """Drop the frames that the other end has received."""
        try:
            self._forget(_COUNT.unpack(payload)[0])
        except struct.error as error:
            raise FrameError(str(error)) from None

    def resume(self, received: int) -> list[bytes]:
        """The frames that the other end is missing after the wire broke."""
        self._forget(received)
        self._told = self.received
        return list(self._kept)

    def _forget(self, received: int) -> None:
        if not self._first <= received <= self._first + len(self._kept):
            raise FrameError(f"{received} frames acknowledged, of {self._first}+{len(self._kept)}")
        for _ in range(received - self._first):
            self._kept.popleft()
        self._first = received
