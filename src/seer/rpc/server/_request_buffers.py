"""The buffers of a request: after its JSON text, or in sealed memfds that came with it."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING

from seer.errors import ProtocolError
from seer.rpc.wire._descriptors import close_each
from seer.rpc.wire._memory import map_sealed

if TYPE_CHECKING:
    from seer.rpc.wire._http import Request


class RequestBuffers:
    """The text and the writable buffers of a request's body.

    Args:
        body: The whole body.
        request: Has the places of the buffers.
        descriptors: The memfds that came with it; this object closes them.
        room: How many more bytes the caller may hold.

    Raises:
        ProtocolError: A memfd is not sealed, has holes, is too large, or is shorter than the
            request says; or its buffers overlap and have more bytes than the memfd.
    """

    def __init__(
        self, body: bytes | bytearray, request: Request, descriptors: list[int], room: int
    ) -> None:
        self._descriptors = descriptors
        self._request = request
        # A function may change its arrays. The record needs them as they arrived.
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
                # Values made from buffers must not take more memory than the caller has sent.
                left[piece.index] -= piece.size
                if left[piece.index] < 0:
                    raise ProtocolError("the buffers of a memfd have more bytes than the memfd")
            found.append(piece.cut(source))
        return found

    def keep(self) -> Callable[[], list[memoryview]]:
        """A function that returns the buffers as they arrived; call it once, at any time."""
        inline = memoryview(bytes(self._original))

        def pristine() -> list[memoryview]:
            sizes = zip(self._descriptors, self._sizes, strict=True)
            maps = [memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)) for fd, size in sizes]
            self.close()
            return self._cut(inline, maps)

        return pristine

    def close(self) -> None:
        """Close the descriptors; the mappings stay."""
        close_each(self._descriptors)
