"""Streamed results as HTTP chunks: reads the chunks of a body, and the line and buffers of each."""

from __future__ import annotations

import json
from typing import Any

from ._protocol import INLINE_ALIGN, WireError, aligned

MAX_CHUNK = 1 << 30
ALIVE = b"\n"
"""A chunk that only says that the function still runs."""


class ChunkReader:
    """Reads the chunks of a body."""

    __slots__ = ("_buffer", "_wanted")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted = -1

    def feed(self, data: bytes) -> list[bytes | None]:
        """Add bytes, and return the complete chunks, without `ALIVE`. None is the end.

        Raises:
            WireError: The body does not consist of HTTP chunks.
        """
        self._buffer += data
        found: list[bytes | None] = []
        while True:
            if self._wanted < 0:
                end = self._buffer.find(b"\r\n", 0, 20)
                if end < 0:
                    if len(self._buffer) > 20:
                        raise WireError("a chunk of the stream has no size")
                    return found
                try:
                    self._wanted = int(bytes(self._buffer[:end]), 16)
                except ValueError:
                    raise WireError("a chunk of the stream has no size") from None
                if not 0 <= self._wanted <= MAX_CHUNK:
                    raise WireError(f"a chunk of the stream has {self._wanted} bytes")
                del self._buffer[: end + 2]
            size = self._wanted + 2
            if len(self._buffer) < size:
                return found
            chunk = bytes(self._buffer[: self._wanted])
            if bytes(self._buffer[self._wanted : size]) != b"\r\n":
                raise WireError("a chunk of the stream does not have the size that it announces")
            del self._buffer[:size]
            if chunk != ALIVE:
                found.append(chunk if self._wanted else None)
            self._wanted = -1


def split_chunk(chunk: bytes) -> tuple[bytes, list[memoryview]]:
    """The JSON line of a chunk, and its buffers.

    Raises:
        WireError: The line does not describe the buffers.
    """
    line, newline, rest = chunk.partition(b"\n")
    if not newline:
        raise WireError("a chunk of the stream has no line")
    if not rest:
        return line, []
    try:
        sizes: Any = json.loads(line)["buffers"]
        body = memoryview(bytearray(chunk))
        buffers: list[memoryview] = []
        end = len(line) + 1
        for size in sizes:
            if type(size) is not int or size < 0:
                raise WireError("a buffer of the stream has no size")
            start = aligned(end, INLINE_ALIGN)
            end = start + size
            buffers.append(body[start:end])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise WireError("a chunk of the stream has bytes that it does not describe") from None
    if end != len(chunk):
        raise WireError("a chunk of the stream does not have the length that it announces")
    return line, buffers
