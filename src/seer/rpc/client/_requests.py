"""The body of a request: the JSON text of a call's arguments, and the layout of their arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..wire._descriptors import close_each
from ..wire._protocol import FRAMES_TYPE, INLINE_ALIGN, Piece, RemoteBuffer, aligned, format_pieces
from ._mappings import sealed_memfd

SEND_SHARED_FROM = 1 << 20
"""Arguments of at least this many bytes are sent in a memfd. Below that, the socket is as fast."""


class Arguments:
    """The arguments of one call, laid out once for all attempts at it.

    Attributes:
        parts: The parts of the body.
        headers: The header lines that describe the body.
        memfds: Descriptors to send with it; `close` closes them.
    """

    __slots__ = ("_text", "_views", "headers", "memfds", "parts")

    def __init__(self, text: bytes, buffers: Sequence[Any], *, shared: bool) -> None:
        self.memfds: list[int] = []
        self._text = text
        self._views = [_host_view(buffer) for buffer in buffers]
        if not buffers:
            self.parts: list[Any] = [text]
            self.headers = b"content-length: %d\r\n" % len(text)
            return
        self._lay_out(shared=shared)

    def message(self, head: bytes) -> list[Any]:
        """The parts of a request that begins with `head`."""
        return [head + self.headers + b"\r\n", *self.parts]

    def go_inline(self) -> None:
        """Put all buffers into the body, because descriptors cannot be passed."""
        self.close()
        self._lay_out(shared=False)

    def _lay_out(self, *, shared: bool) -> None:
        text, views = self._text, self._views
        pieces: list[Piece | None] = [None] * len(views)
        large = [i for i, view in enumerate(views) if shared and view.nbytes >= SEND_SHARED_FROM]
        made = sealed_memfd([views[i] for i in large]) if large else None
        if made is not None:
            fd, found = made
            self.memfds.append(fd)
            for i, piece in zip(large, found, strict=True):
                pieces[i] = piece
        self.parts = [text]
        end = len(text)
        for i, view in enumerate(views):
            if pieces[i] is None:
                start = aligned(end, INLINE_ALIGN)
                if start > end:
                    self.parts.append(bytes(start - end))
                self.parts.append(view)
                pieces[i] = Piece("i", 0, start, view.nbytes)
                end = start + view.nbytes
        self.headers = b"content-type: %s\r\nseer-json: %d\r\nseer-buffers: %s\r\n%s%s" % (
            FRAMES_TYPE,
            len(text),
            format_pieces([piece for piece in pieces if piece is not None]),
            b"seer-memfds: 1\r\n" if self.memfds else b"",
            b"content-length: %d\r\n" % end,
        )

    def close(self) -> None:
        """Close the memfds."""
        close_each(self.memfds)


def _host_view(buffer: Any) -> memoryview:
    if isinstance(buffer, RemoteBuffer):
        return memoryview(buffer.copied())
    return memoryview(buffer).cast("B")
