"""The buffers that came with a request: after the JSON text, or in sealed memfds beside it."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from seer.errors import ProtocolError
from seer.rpc.wire._memory import map_sealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from seer.rpc.wire._http import Request


class RequestBuffers:
    """A request's body, cut into text and buffers that can be written to.

    Args:
        body: The whole body.
        request: Says where the buffers are.
        descriptors: The memfds that came along; they are this object's from now on.
        room: How many bytes the caller may still have in use.

    Raises:
        ProtocolError: A memfd is not sealed, has holes, is too large or shorter than the request
            says, or buffers overlap so much that they have more bytes than it.
    """

    def __init__(
        self, body: bytes | bytearray, request: Request, descriptors: list[int], room: int
    ) -> None:
        self._descriptors = descriptors
        self._request = request
        # What a function does to its arrays must not show in the record: the original stays.
        self._original = body
        try:
            maps: list[memoryview] = []
            size = len(body)
            for fd in descriptors:
                mapped = memoryview(map_sealed(fd, room - size))
                size += len(mapped)
                maps.append(mapped)
            self._sizes = [len(mapped) for mapped in maps]
            self.size = size
            whole = memoryview(bytearray(body) if isinstance(body, bytes) else body)
            self.text = whole[: request.json_size]
            self.buffers = self._cut(whole, maps)
        except BaseException:
            self.close()
            raise

    def _cut(self, whole: memoryview, maps: list[memoryview]) -> list[memoryview]:
        found: list[memoryview] = []
        left = [len(mapped) for mapped in maps]
        for piece in self._request.pieces or []:
            source = whole if piece.place == "i" else maps[piece.index]
            if piece.offset + piece.size > len(source):
                raise ProtocolError("a buffer reaches past the end of its memfd")
            if piece.place == "m":
                # What is made of buffers costs memory here: as much as their caller sent, not more.
                left[piece.index] -= piece.size
                if left[piece.index] < 0:
                    raise ProtocolError("the buffers of a memfd have more bytes than it")
            found.append(source[piece.offset : piece.offset + piece.size])
        return found

    def keep(self) -> Callable[[], list[memoryview]]:
        """What gives the buffers as they came, once, at any later time."""
        inline = memoryview(bytes(self._original))

        def pristine() -> list[memoryview]:
            sizes = zip(self._descriptors, self._sizes, strict=True)
            maps = [memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)) for fd, size in sizes]
            self.close()
            return self._cut(inline, maps)

        return pristine

    def close(self) -> None:
        """Close the descriptors; what is mapped stays."""
        while self._descriptors:
            os.close(self._descriptors.pop())
