"""Connect to a Unix socket in a machine's run folder, which an agent's code can write to."""

import asyncio
import contextlib
import socket
from pathlib import Path

from seer.errors import PathEscapeError, RemoteFileError, SandboxLostError
from seer.isolation import connect_beneath
from seer.providers import Channel, Machine

_AT_ONCE = 8
"""Reads in a row without a trip through the loop."""


class SocketChannel(Channel):
    """A connected stream socket of this host as a `Channel`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._at_once = 0

    async def read(self, n: int = 65536) -> bytes:
        """Read at most `n` bytes; `b""` at the end."""
        if self._at_once >= _AT_ONCE:
            self._at_once = 0
            await asyncio.sleep(0)
        try:
            # What is there already needs no trip through the loop, but a peer that always has
            # more must not keep the loop from all else.
            data = self._socket.recv(n)
            self._at_once += 1
            return data
        except BlockingIOError:
            pass
        except OSError as error:
            raise SandboxLostError(f"the connection is gone: {error}") from None
        self._at_once = 0
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
        self.shut()

    def shut(self) -> None:
        """Close the socket, from where nothing can be awaited."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


async def dial(machine: Machine, path: str) -> Channel:
    """Connect to the socket `path` in the machine's run folder.

    On this host the kernel of the operating system resolves the path beneath the run folder and
    without symbolic links, so that a planted link leads nowhere; elsewhere the machine itself
    connects, inside its own boundary.

    Raises:
        SandboxLostError: Nothing listens there, or something else lies in its place.
    """
    run = machine.layout.run.rstrip("/") + "/"
    root = machine.socket_path(machine.layout.run)
    if root is None or not path.startswith(run):
        try:
            return await machine.connect(path)
        except RemoteFileError as error:
            raise SandboxLostError(f"nothing listens on {path!r}: {error}") from None
    try:
        # Not on the loop: a listener that accepts nothing makes a connect wait.
        connection = await asyncio.to_thread(connect_beneath, root, path.removeprefix(run))
    except (OSError, PathEscapeError) as error:
        raise SandboxLostError(f"nothing listens on {path!r}: {error}") from None
    return SocketChannel(connection)


def connect_path(path: Path) -> socket.socket:
    """Connect to a socket in a folder of this host that no agent can write to."""
    return connect_beneath(path.parent, path.name)
