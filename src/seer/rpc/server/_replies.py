"""Replies: the result of a call as bytes for one connection.

A reply is made once, for the connection that asked. Large buffers go into a slot of that
connection's pool; the others follow the JSON text. If the reply is fetched again over another
connection, its slot is copied inline.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seer.rpc.wire._http import response_head
from seer.rpc.wire._protocol import (
    FRAMES_TYPE,
    INLINE_ALIGN,
    MAX_HEAD,
    SHARE_FROM,
    SLOT_ALIGN,
    Piece,
    RemoteBuffer,
    aligned,
    format_pieces,
)

if TYPE_CHECKING:
    from seer.rpc.wire._memory import Slot, SlotPool


_COPY_BELOW = 1 << 20
_MAX_LAYOUT = MAX_HEAD - 2048
"""Maximum bytes of the header with the places of all buffers."""


class Reply:
    """A complete reply.

    Attributes:
        status: The HTTP status.
        text: The JSON text.
        pieces: The places of the buffers, in order; empty for plain JSON.
        inline: Bytes of the inline buffers, each with the padding before it; immutable.
        slot: The slot with the other buffers, if any.
        pool: The pool of the slot.
        size: The bytes of text and buffers.
        kept_size: The bytes it takes while it is kept, without the slot.
        outcome: `ok`, or the name of the error's class, for the record.
        traceback: The whole traceback for the record; empty if there is none or the text has it.
        last_chunk: The end of a streamed reply; empty for other replies.
    """

    __slots__ = (
        "inline",
        "kept_size",
        "last_chunk",
        "outcome",
        "pieces",
        "pool",
        "size",
        "slot",
        "status",
        "text",
        "traceback",
    )

    def __init__(self, status: int, text: bytes, outcome: str = "ok") -> None:
        self.status = status
        self.text = text
        self.outcome = outcome
        self.last_chunk = b""
        self.traceback = ""
        self.pieces: Sequence[Piece] = ()
        self.inline: Sequence[bytes] = ()
        self.slot: Slot | None = None
        self.pool: SlotPool | None = None
        self.size = self.kept_size = len(text)

    def add_buffers(self, buffers: list[Any], pool: SlotPool | None) -> None:
        """Add buffers: large ones to a slot of `pool`, if there is one; the others inline.

        Everything is copied, because the next call may change what the function returned.
        """
        sizes = [size_of(buffer) for buffer in buffers]
        large = [i for i, size in enumerate(sizes) if size >= SHARE_FROM]
        if pool is not None and large:
            total = sum(aligned(sizes[i], SLOT_ALIGN) for i in large)
            self.slot = pool.take(total)
        slot = self.slot
        if slot is None:
            large = []
        else:
            self.pool = pool
        offset = 0
        end = len(self.text)
        pieces: list[Piece] = []
        inline: list[bytes] = []
        for i, (buffer, size) in enumerate(zip(buffers, sizes, strict=True)):
            if slot is not None and large and large[0] == i:
                del large[0]
                _copy(buffer, slot.view[offset : offset + size])
                pieces.append(Piece("s", slot.index, offset, size))
                offset = aligned(offset + size, SLOT_ALIGN)
            else:
                start = aligned(end, INLINE_ALIGN)
                if start > end:
                    inline.append(bytes(start - end))
                inline.append(_bytes(buffer))
                pieces.append(Piece("i", 0, start, size))
                end = start + size
        if len(pieces) > 300 and len(format_pieces(pieces)) > _MAX_LAYOUT:
            raise ValueError(f"it has {len(pieces)} arrays; stack them into fewer")
        self.pieces, self.inline = pieces, inline
        self.kept_size = end
        self.size = end + offset

    def keep_from_caller(self) -> None:
        """Take the slot back from the caller, because the reply is not sent."""
        if self.slot is not None and self.pool is not None:
            self.pool.release(self.slot.index)

    def let_go(self) -> None:
        """Note that this reply no longer needs the slot."""
        if self.slot is not None and self.pool is not None:
            self.pool.let_go(self.slot)

    def buffers(self) -> list[memoryview]:
        """The buffers, in order."""
        if not self.pieces:
            return []
        inline = memoryview(b"".join([self.text, *self.inline]))
        slot = inline if self.slot is None else self.slot.view
        return [piece.cut(slot if piece.place == "s" else inline) for piece in self.pieces]

    def unshared(self) -> Reply:
        """The same reply without a slot, for a connection that does not have the slot."""
        if self.slot is None:
            return self
        other = Reply(self.status, self.text, self.outcome)
        other.add_buffers([bytes(buffer) for buffer in self.buffers()], None)
        return other

    def message(self, prefix: bytes, *, close: bool) -> list[bytes]:
        """The parts to send; a descriptor that the peer needs for the slot goes with the first."""
        if not self.pieces:
            head = response_head(self.status, prefix, len(self.text), close=close)
            return [head + self.text]
        extra = b"seer-json: %d\r\nseer-buffers: %s\r\n" % (
            len(self.text),
            format_pieces(self.pieces),
        )
        if self.slot is not None and not self.slot.known:
            extra += b"seer-slots: %d=%d\r\n" % (self.slot.index, self.slot.size)
        length = len(self.text) + sum(map(len, self.inline))
        head = response_head(
            self.status, prefix, length, content_type=FRAMES_TYPE, extra=extra, close=close
        )
        if length < _COPY_BELOW:
            return [b"".join([head, self.text, *self.inline])]
        return [head + self.text, *self.inline]


def plain_message(status: int, prefix: bytes, text: bytes, *, close: bool = False) -> bytes:
    """A complete response with only JSON text."""
    return response_head(status, prefix, len(text), close=close) + text


def size_of(buffer: Any) -> int:
    """The bytes of a buffer, which may still be on a GPU."""
    return buffer.nbytes if isinstance(buffer, RemoteBuffer) else memoryview(buffer).nbytes


def _copy(buffer: Any, target: memoryview) -> None:
    if isinstance(buffer, RemoteBuffer):
        buffer.copy_into(target)
    elif target.nbytes:
        copy(memoryview(buffer).cast("B"), target)


def _bytes(buffer: Any) -> bytes:
    if isinstance(buffer, bytes):
        return buffer
    if isinstance(buffer, RemoteBuffer):
        return bytes(buffer.copied())
    return memoryview(buffer).tobytes()


APART = 16 << 20
"""From this many bytes on, several threads copy. Below that, starting them does not pay."""
MOST = 4
"""Maximum number of threads. More do not copy faster."""
_PAGE = 4096


def copy(source: memoryview, target: memoryview) -> None:
    """Copy all of `source` to the beginning of `target`; both are bytes."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        target[:] = source
        return
    here = numpy.frombuffer(source, "u1")
    there = numpy.frombuffer(target, "u1")
    parts = min(MOST, len(os.sched_getaffinity(0))) if len(source) >= APART else 1
    step = (len(source) // parts + _PAGE) // _PAGE * _PAGE
    threads = [
        thread
        for start in range(step, len(source), step)
        if (thread := _begin(numpy, there[start : start + step], here[start : start + step]))
    ]
    numpy.copyto(there[:step], here[:step])
    for thread in threads:
        thread.join()


def _begin(numpy: Any, target: Any, source: Any) -> threading.Thread | None:
    """Copy on a new thread. If none can be started, copy here and return None."""
    thread = threading.Thread(
        target=numpy.copyto, args=(target, source), name="seer-copy", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:
        numpy.copyto(target, source)
        return None
    return thread
