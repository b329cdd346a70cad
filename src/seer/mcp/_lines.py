"""Lines of JSON-RPC on a client's standard input and output, which its relay passes here.

The SDK drops a line that it cannot parse, and then the client waits forever. So this module parses
each line first, and refuses an invalid one with an error. It knows nothing about MCP: the SDK
checks methods and their parameters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import stat
from dataclasses import dataclass
from typing import Any, cast

from seer._sockets import readable

LINE_LIMIT = 64 * 1024 * 1024
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escape that may be a lone surrogate, which cannot be forwarded."""


@dataclass(frozen=True)
class Refusal:
    """Why a line is not a message."""

    code: int
    reason: str
    request_id: int | str | None = None
    """The id in the line, if it can be read."""

    def answer(self) -> bytes:
        """The JSON-RPC error, as a line without its newline."""
        error = {"code": self.code, "message": self.reason}
        return json.dumps({"jsonrpc": "2.0", "id": self.request_id, "error": error}).encode()


TOO_LONG = Refusal(INVALID_REQUEST, "the line is too long; write large data to a file instead")


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
                raise ValueError("the relay has another version")
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
        """Take over two descriptors; both are closed if this is cancelled."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_LIMIT, loop=loop)
        with contextlib.ExitStack() as undo:
            # asyncio closes the file of a transport whose set-up is cancelled, and no other.
            undo.callback(os.close, writing)
            read_transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(reading, "rb", 0)
            )
            undo.pop_all()
            undo.callback(read_transport.close)
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop),
                os.fdopen(writing, "wb", 0),
            )
            undo.pop_all()
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        return cls(reader, read_transport, writer)

    async def read_line(self) -> bytes | Refusal:
        """The next line, empty at the end; for a line that is too long, a refusal."""
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
        """Close both directions."""
        self._read_transport.close()
        self._writer.close()


def parse_line(line: bytes) -> dict[str, Any] | Refusal:
    """The message in a line, or why the line is not a message."""
    try:
        value: object = json.loads(line)
        if _LONE_SURROGATE.search(line):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return Refusal(PARSE_ERROR, f"not JSON: {type(error).__name__}: {str(error)[:200]}")
    if isinstance(value, list):
        return Refusal(INVALID_REQUEST, "batches are not part of MCP; send one message per line")
    if not isinstance(value, dict):
        return Refusal(INVALID_REQUEST, f"a message is an object, not {type(value).__name__}")
    message = cast("dict[str, Any]", value)
    return _problem(message) or message


def _problem(message: dict[str, Any]) -> Refusal | None:
    given = message.get("id")
    known = isinstance(given, int | str) and not isinstance(given, bool)
    request_id = given if known else None
    if "id" in message and not known and "error" not in message:
        return Refusal(INVALID_REQUEST, f"id={given!r:.100}: an id is a string or a whole number")
    if message.get("jsonrpc") != "2.0":
        return Refusal(INVALID_REQUEST, 'the member "jsonrpc" must be "2.0"', request_id)
    if "method" not in message:
        if "result" in message or "error" in message:
            return None
        return Refusal(INVALID_REQUEST, "there is no method, no result and no error", request_id)
    if not isinstance(message["method"], str):
        return Refusal(INVALID_REQUEST, "a method is a string", request_id)
    if not isinstance(message.get("params", {}), dict | None):
        return Refusal(INVALID_PARAMS, "params are an object, given by name", request_id)
    return None
