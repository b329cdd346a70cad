"""An MCP server over pipes: clients start a relay program, which passes its pipes to this process.

The relay connects to a private Unix socket. Only this user can open the socket's folder, and a peer
of another user is refused. There is no token, so none can leak from a configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from seer._sockets import Acceptor
from seer._sync import run_on
from seer.execution._folders import PrivateFolder
from seer.mcp._streams import Pipes
from seer.tools._tool import server_name

logger = logging.getLogger(__name__)

_HANDOVER_TIME = 10.0
_RELAY = Path(__file__).with_name("_relay.py")

Serve = Callable[[Pipes], Awaitable[None]]
"""Serves one client until it disconnects."""


class StdioServer:
    """Accepts MCP clients until it is closed."""

    def __init__(self, name: str, folder: PrivateFolder, serve: Serve) -> None:
        self._name = server_name(name)
        self._folder = folder
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._acceptor: Acceptor | None = None
        self._closers: list[Callable[[], Awaitable[None]]] = []

    @classmethod
    async def open(cls, name: str, folder: PrivateFolder, serve: Serve) -> StdioServer:
        """Open a server.

        Args:
            name: What agents call the server.
            folder: Holds the socket; `close` removes it.
            serve: Serves one client.
        """
        self = cls(name, folder, serve)
        try:
            shutil.copyfile(_RELAY, folder.path / "relay.py")
            _bind(self._listener, folder.path)
            self._listener.listen(64)
        except BaseException:
            self._listener.close()
            folder.remove()
            raise
        self._acceptor = Acceptor(self._listener, self._greet)
        return self

    @property
    def mcp_config(self) -> dict[str, dict[str, Any]]:
        """How agents start the server: `{name: {"type", "command", "args", "env"}}`."""
        # -I and -S: the relay ignores the agent's environment and folder.
        args = ["-I", "-S", str(self._folder.path / "relay.py")]
        return {self._name: {"type": "stdio", "command": sys.executable, "args": args, "env": {}}}

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Close something else together with the server, in the order given."""
        self._closers.append(closer)

    async def close(self) -> None:
        """Close the server and every connection to it, from any event loop.

        Closing twice is harmless.
        """
        await run_on(self._loop, self._close())

    async def _close(self) -> None:
        if self._acceptor is not None:
            await self._acceptor.close()
        self._folder.remove()
        closers, self._closers = self._closers, []
        for closer in closers:
            await closer()

    async def _greet(self, connection: socket.socket) -> None:
        with connection:
            await self._admit(connection)

    async def _admit(self, connection: socket.socket) -> None:
        user = _peer_user(connection)
        if user != os.geteuid():
            logger.warning("refused user %s as a client of %r", user, self._name)
            with contextlib.suppress(OSError):
                connection.send(b"only the user who opened this server can use it")
            return
        try:
            async with asyncio.timeout(_HANDOVER_TIME):
                pipes = await Pipes.take(connection)
        except (OSError, ValueError, TimeoutError) as error:
            logger.warning("a client of %r brought no usable streams: %s", self._name, error)
            with contextlib.suppress(OSError):
                connection.send(b"standard input and output must be pipes")
            return
        await self._speak(pipes, connection)

    async def _speak(self, pipes: Pipes, connection: socket.socket) -> None:
        """Serve until the client disconnects, its process ends or the server is closed."""
        serving = asyncio.ensure_future(self._serve(pipes))
        gone = asyncio.create_task(_wait_for_end(connection))
        try:
            await asyncio.wait([serving, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (serving, gone):
                task.cancel()
            done = await asyncio.gather(serving, gone, return_exceptions=True)
            pipes.close()
        if isinstance(done[0], Exception):
            logger.error("the server of %r failed", self._name, exc_info=done[0])


def _bind(listener: socket.socket, folder: Path) -> None:
    """Bind a socket in `folder`, even if its path is too long for an address."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{fd}/mcp.sock")
    finally:
        os.close(fd)


def _peer_user(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, user, _ = struct.unpack("3i", credentials)
    return user


async def _wait_for_end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(connection, 64):
            continue
