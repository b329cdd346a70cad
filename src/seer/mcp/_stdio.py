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
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from seer._sockets import Acceptor
from seer._unix_sockets import listen, peer_credentials
from seer.execution._folders import PrivateFolder
from seer.mcp._closing import ClosableServer
from seer.mcp._lines import Pipes
from seer.tools._tool import server_name

logger = logging.getLogger(__name__)

_HANDOVER_TIME = 10.0
_RELAY = Path(__file__).with_name("_relay.py")

Serve = Callable[[Pipes], Awaitable[None]]
"""Serves one client until it disconnects."""


class StdioServer(ClosableServer):
    """Accepts MCP clients until it is closed."""

    def __init__(self, name: str, folder: PrivateFolder, serve: Serve) -> None:
        super().__init__()
        self._name = server_name(name)
        self._folder = folder
        self._serve = serve
        self._acceptor: Acceptor | None = None

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
            listener = listen(folder.path / "mcp.sock", 64)
        except BaseException:
            folder.remove()
            raise
        self._acceptor = Acceptor(listener, self._greet)
        return self

    @property
    def mcp_config(self) -> dict[str, dict[str, Any]]:
        """How agents start the server: `{name: {"type", "command", "args", "env"}}`."""
        # -I and -S: the relay ignores the agent's environment and folder.
        args = ["-I", "-S", str(self._folder.path / "relay.py")]
        return {self._name: {"type": "stdio", "command": sys.executable, "args": args, "env": {}}}

    async def _close(self) -> None:
        if self._acceptor is not None:
            await self._acceptor.close()
        self._folder.remove()

    async def _greet(self, connection: socket.socket) -> None:
        with connection:
            await self._admit(connection)

    async def _admit(self, connection: socket.socket) -> None:
        _, user, _ = peer_credentials(connection)
        if user != os.geteuid():
            logger.warning("refused user %s as a client of %r", user, self._name)
            with contextlib.suppress(OSError):
                connection.send(b"only the user who opened this server can use it")
            return
        try:
            async with asyncio.timeout(_HANDOVER_TIME):
                pipes = await Pipes.take(connection)
        except (OSError, ValueError, TimeoutError) as error:
            logger.warning("refused a client of %r without usable streams: %s", self._name, error)
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


async def _wait_for_end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(connection, 64):
            continue
