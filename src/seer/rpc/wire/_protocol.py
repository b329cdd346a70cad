"""Constants that both ends of the gate's wire share, and the layout of a message's buffers.

The wire is a subset of HTTP/1.1 over a Unix stream socket, which `docs/wire.md` describes. This
module does no input or output, and knows no values.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from ...errors import (
    ArgumentError,
    BudgetExceededError,
    CallCancelledError,
    CallLostError,
    DeadlineExceededError,
    GateBusyError,
    GateError,
    HandleError,
    InterfaceDiedError,
    InterfaceRestartedError,
    ProtocolError,
    ResultError,
    StillRunningError,
    UnknownFunctionError,
)

VERSION = 1
"""Both sides send it with every message as `seer-gate`. There is no other version yet."""

HELLO = b"GET /v1/health HTTP/1.1\r\nhost: gate\r\nseer-gate: %d\r\n\r\n" % VERSION
"""A client's first request; the answer has the epoch."""

JSON_TYPE = b"application/json"
FRAMES_TYPE = b"application/x-seer-frames"
STREAM_TYPE = b"application/x-ndjson"

MAX_HEAD = 16 * 1024
MAX_DESCRIPTORS = 64
"""Maximum number of descriptors with one message (the kernel allows 253)."""
INLINE_ALIGN = 16
SLOT_ALIGN = 64
SHARE_FROM = 256 * 1024
"""Buffers of at least this many bytes are sent through shared memory, if both ends can."""
CANNOT_PASS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS}
)
"""The errors that mean that no descriptor can be passed, or no connection made, just now."""
RAISED = 500
"""The status of an answer with the exception of a function."""
STATUS: dict[type[GateError], int] = {
    ArgumentError: 422,
    BudgetExceededError: 429,
    CallCancelledError: 409,
    CallLostError: 500,
    DeadlineExceededError: 504,
    GateBusyError: 503,
    GateError: 500,
    HandleError: 404,
    InterfaceDiedError: 503,
    InterfaceRestartedError: 409,
    ProtocolError: 400,
    ResultError: 500,
    StillRunningError: 409,
    UnknownFunctionError: 404,
}
"""The gate's own errors, which are sent by their names, and the status of each."""
KEEP_ALIVE = 10.0
"""Seconds between two interim `102 Processing` of a call that is still running."""

TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""The bytes that a header's name may contain."""
CONTROL = bytes(range(0x20)) + b"\x7f"
"""The bytes that a header's value may not contain."""


class WireError(Exception):
    """A message broke the protocol, so the connection must be closed.

    Attributes:
        status: The HTTP status for the answer; 429 or 503 if the message was correct, but there is
            no room for it now.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def aligned(offset: int, to: int) -> int:
    """The first multiple of `to` that is not below `offset`."""
    return (offset + to - 1) // to * to


def parse_headers(lines: list[bytes]) -> dict[bytes, bytes]:
    """Parse header lines strictly: names in lower case, no folding, no name twice.

    Raises:
        WireError: A line is malformed or a name occurs twice.
    """
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or not name or name.translate(None, TOKEN):
            raise WireError(f"malformed header line {line[:80]!r}")
        value = value.strip(b" \t")
        if value.translate(None, CONTROL) != value:
            raise WireError(f"control characters in header {name[:80]!r}")
        if name in headers:
            raise WireError(f"header {name[:80]!r} occurs twice")
        headers[name] = value
    return headers


def parse_number(text: bytes, what: str) -> int:
    """Parse a plain decimal number: digits only, at most 15 of them.

    Raises:
        WireError: It is anything else.
    """
    if not text.isdigit() or len(text) > 15:
        raise WireError(f"{what} is {text[:40]!r}, which is not a plain decimal number")
    return int(text)


class Piece:
    """The place of one buffer of a message.

    Attributes:
        place: `i` for the body after the JSON text, `m` for the memfd number `index` that came with
            the message, `s` for the pool's slot number `index`.
        index: The number of the memfd or slot; 0 for `i`.
        offset: Where it begins there.
        size: How many bytes it has.
    """

    __slots__ = ("index", "offset", "place", "size")

    def __init__(self, place: str, index: int, offset: int, size: int) -> None:
        self.place = place
        self.index = index
        self.offset = offset
        self.size = size

    def cut(self, source: Any) -> Any:
        """The buffer, cut out of the memory that contains it."""
        return source[self.offset : self.offset + self.size]


class RemoteBuffer:
    """A buffer whose memory is elsewhere: on a GPU, or in another process.

    Attributes:
        nbytes: How many bytes it has.
    """

    __slots__ = ()
    nbytes: int

    def copy_into(self, target: memoryview) -> None:
        """Copy the memory to `target`, which is writable and has `nbytes` bytes."""
        raise NotImplementedError

    def copied(self) -> bytearray:
        """The memory, copied to this process."""
        copy = bytearray(self.nbytes)
        self.copy_into(memoryview(copy))
        return copy


def format_pieces(pieces: Sequence[Piece]) -> bytes:
    """Write the value of the header `seer-buffers`."""
    return b",".join(
        b"i%d" % piece.size
        if piece.place == "i"
        else b"%s%d+%d+%d" % (piece.place.encode(), piece.index, piece.offset, piece.size)
        for piece in pieces
    )


def parse_pieces(value: bytes, *, json_size: int, body_size: int) -> list[Piece]:
    """Parse `seer-buffers` and check that its inline pieces fill the body exactly.

    Raises:
        WireError: It is malformed, or does not fit the body.
    """
    pieces: list[Piece] = []
    end = json_size
    for item in value.split(b","):
        place, rest = item[:1], item[1:]
        if place == b"i":
            size = parse_number(rest, "an inline buffer's size")
            offset = aligned(end, INLINE_ALIGN)
            end = offset + size
            pieces.append(Piece("i", 0, offset, size))
        elif place in (b"m", b"s"):
            numbers = rest.split(b"+")
            if len(numbers) != 3:
                raise WireError(f"malformed buffer {item[:60]!r}")
            index, offset, size = (parse_number(n, "a buffer's place") for n in numbers)
            pieces.append(Piece(place.decode(), index, offset, size))
        else:
            raise WireError(f"malformed buffer {item[:60]!r}")
    if end != body_size:
        raise WireError(f"the body has {body_size} bytes, but its buffers end at {end}")
    return pieces


def parse_slots(value: bytes) -> list[tuple[int, int]]:
    """Parse `seer-slots`: the (slot, size) of each descriptor that came with the message.

    Raises:
        WireError: It is malformed.
    """
    slots: list[tuple[int, int]] = []
    for item in value.split(b","):
        slot, equals, size = item.partition(b"=")
        if not equals:
            raise WireError(f"malformed slot {item[:60]!r}")
        slots.append((parse_number(slot, "a slot"), parse_number(size, "a slot's size")))
    return slots
