"""Connections to and from a machine's Unix sockets.

`connect_in_machine` connects to a socket in the run folder, which an agent's code can write to.
`ReverseTunnel` is the other direction, and the only way for a session in a sandbox to reach an
interface that is served elsewhere. Programs in the machine connect to a Unix socket there, and the
controller forwards the bytes to a socket of this host. That socket belongs to one caller of the
gate, so every connection through the tunnel is made as that caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from functools import partial
from pathlib import Path

from seer._sockets import connect_in_thread
from seer.errors import PathEscapeError, RemoteFileError, SandboxLostError
from seer.isolation import connect_beneath
from seer.providers import Channel, Listener, Machine
from seer.providers.client._relay import relay

logger = logging.getLogger(__name__)

_READS_IN_A_ROW = 8
"""Reads without giving other tasks of the loop a turn."""
_MAX_CONNECTIONS = 64
"""Open connections through one tunnel; further ones wait."""


class SocketChannel(Channel):
    """A connected stream socket of this host as a `Channel`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._reads_in_a_row = 0

    async def read(self, n: int = 65536) -> bytes:
        """Read at most `n` bytes; `b""` at the end."""
        if self._reads_in_a_row >= _READS_IN_A_ROW:
            self._reads_in_a_row = 0
            await asyncio.sleep(0)
        try:
            # Data that has arrived is read at once. The limit keeps a peer that always has more
            # from blocking the loop.
            data = self._socket.recv(n)
            self._reads_in_a_row += 1
            return data
        except BlockingIOError:
            pass
        except OSError as error:
            raise SandboxLostError(f"the connection is gone: {error}") from None
        self._reads_in_a_row = 0
        try:
            return await self._loop.sock_recv(self._socket, n)
        except OSError as error:
            raise SandboxLostError(f"the connection is gone: {error}") from None

    async def write(self, data: bytes) -> None:
        """Write all of `data`."""
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise SandboxLostError(f"the connection is gone: {error}") from None

    async def close(self) -> None:
        """Close the socket."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


async def connect_in_machine(machine: Machine, path: str) -> Channel:
    """Connect to the socket `path` in the machine's run folder.

    On this host the operating system resolves the path beneath the run folder and without
    symbolic links, so a planted link leads nowhere. On another host the machine connects, inside
    its own jail.

    Raises:
        SandboxLostError: Nothing listens there, or the path is not a socket.
    """
    run = machine.layout.run.rstrip("/") + "/"
    root = machine.socket_path(machine.layout.run)
    if root is None or not path.startswith(run):
        try:
            return await machine.connect(path)
        except RemoteFileError as error:
            raise SandboxLostError(f"nothing listens on {path!r}: {error}") from None
    try:
        inner = path.removeprefix(run)
        connection = await connect_in_thread(partial(connect_beneath, root, inner))
    except (OSError, PathEscapeError) as error:
        raise SandboxLostError(f"nothing listens on {path!r}: {error}") from None
    return SocketChannel(connection)


def connect_path(path: Path) -> socket.socket:
    """Connect to a socket of this host. A symbolic link is refused."""
    return connect_beneath(path.parent, path.name)


class ReverseTunnel:
    """Forwards connections from a machine to a socket of this host until it is closed."""

    def __init__(self, listener: Listener, target: Path) -> None:
        self._listener = listener
        self._target = target
        self._warned = False
        self._relays: dict[asyncio.Task[None], Channel] = {}
        self._accepting = asyncio.create_task(self._accept())

    @classmethod
    async def open(cls, machine: Machine, path: str, target: Path) -> ReverseTunnel:
        """Listen on `path` in the machine for connections to `target` on this host.

        Raises:
            RemoteFileError: The socket cannot be made there.
        """
        return cls(await machine.listen(path).__aenter__(), target)

    async def close(self) -> None:
        """Close the tunnel and every connection through it."""
        relays = dict(self._relays)
        for task in (*relays, self._accepting):
            task.cancel()
        await asyncio.gather(*relays, self._accepting, return_exceptions=True)
        for channel in relays.values():
            await channel.close()  # also if the relay is cancelled before it begins
        with contextlib.suppress(SandboxLostError):
            await self._listener.close()

    async def _accept(self) -> None:
        room = asyncio.Semaphore(_MAX_CONNECTIONS)
        try:
            async for channel in self._listener:
                await room.acquire()
                task = asyncio.create_task(self._serve(channel))
                self._relays[task] = channel
                task.add_done_callback(lambda task: self._relays.pop(task, None))
                task.add_done_callback(lambda _: room.release())
        except SandboxLostError as error:
            logger.debug("a tunnel ended with its machine: %s", error)

    async def _serve(self, channel: Channel) -> None:
        try:
            near = SocketChannel(await connect_in_thread(partial(connect_path, self._target)))
        except OSError as error:
            # Logged once, because a program in the machine can connect without limit.
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            logger.log(level, "nothing listens on the gate's socket any more: %s", error)
            await channel.close()
            return
        await relay(channel, near)
