"""Byte streams to and from sockets in a machine."""

import asyncio
import contextlib

from seer.errors import SandboxLostError
from seer.providers.client._connection import Lost
from seer.providers.client._interfaces import Channel


class StreamChannel(Channel):
    """A channel over asyncio streams."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: Lost
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._lost = lost
        self._closed = False

    async def read(self, n: int = 65536) -> bytes:
        """Read at most `n` bytes; `b""` at the end."""
        try:
            return await self._reader.read(n)
        except ConnectionResetError:
            # The program closed its end without reading all bytes. For the reader, that is the end.
            return b""
        except OSError:
            raise await self._lost() from None

    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting while the other side is slow."""
        if self._closed:
            raise SandboxLostError("the channel is closed")
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            raise await self._lost() from None

    @property
    def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The underlying streams, for code that takes them over."""
        return self._reader, self._writer

    async def end_writing(self) -> None:
        """Close the writing direction. The other side then reads the end of the stream."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def close(self) -> None:
        """Close both directions."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
