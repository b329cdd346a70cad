"""The lines of a client's standard input and output, which its relay has passed to this process."""

from __future__ import annotations

import asyncio
import os
import socket
import stat

from seer._sockets import readable
from seer.mcp._lines import TOO_LONG, Refusal

LINE_LIMIT = 64 * 1024 * 1024


class Pipes:
    """Reads lines from a client and writes lines to it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        read_transport: asyncio.ReadTransport,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._reader = reader
        self._read_transport = read_transport
        self._writer = writer
        self.session = ""
        """The id of the session that the client's agent works in, if it has one."""

    @classmethod
    async def take(cls, connection: socket.socket) -> Pipes:
        """Receive a client's two descriptors from its relay.

        Raises:
            ValueError: They are not pipes, sockets or terminals.
            OSError: The relay went away.
        """
        await readable(connection)
        greeting, fds, _, _ = socket.recv_fds(connection, 256, 2)
        try:
            if not greeting.startswith(b"1") or len(fds) != 2:
                raise ValueError("a relay of another version")
            for fd in fds:
                mode = os.fstat(fd).st_mode
                if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)):
                    raise ValueError("standard input and output must be pipes")
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        self = await cls.attach(*fds)
        self.session = greeting[1:].decode(errors="replace")
        return self

    @classmethod
    async def attach(cls, reading: int, writing: int) -> Pipes:
        """Take over two descriptors."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_LIMIT, loop=loop)
        read_transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(reading, "rb", 0)
        )
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop),
            os.fdopen(writing, "wb", 0),
        )
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        return cls(reader, read_transport, writer)

    async def read_line(self) -> bytes | Refusal:
        """The next line; empty at the end; a refusal instead of a line that is too long."""
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError as error:
            return await self._skip(error)
        except OSError:  # a broken pipe is also an end
            return b""

    async def _skip(self, error: asyncio.LimitOverrunError) -> bytes | Refusal:
        """Read past a line that is too long."""
        while True:
            await self._reader.readexactly(error.consumed)
            try:
                await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as more:
                error = more
            except (asyncio.IncompleteReadError, OSError):
                return b""
            else:
                return TOO_LONG

    async def write_line(self, data: bytes) -> None:
        """Write a line, waiting while the client is slow.

        Raises:
            OSError: The client is gone.
        """
        self._writer.write(data + b"\n")
        await self._writer.drain()

    def close(self) -> None:
        """Close both."""
        self._read_transport.close()
        self._writer.close()
