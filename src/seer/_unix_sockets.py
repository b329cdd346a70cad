"""Unix sockets at paths of any length. The kernel accepts addresses of at most 107 bytes."""

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def address(path: Path) -> Generator[str]:
    """A short address for the socket at `path`, to bind or connect to within the block."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path, backlog: int, *, mode: int | None = None) -> socket.socket:
    """Listen at `path`. `mode` sets the socket's permissions; by default, the umask decides."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with address(path) as where:
            listener.bind(where)
        if mode is not None:
            path.chmod(mode)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


async def serve(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    listener: socket.socket,
    *,
    limit: int,
) -> asyncio.Server:
    """Serve each connection of a socket that `listen` has made."""
    # Not `start_unix_server`: when it closes, Python 3.13 removes the file at the socket's address.
    # That address contains a descriptor's number, which may belong to another folder by then.
    return await asyncio.start_server(handle, sock=listener, limit=limit)


def connect(path: Path, *, timeout: float | None = None) -> socket.socket:
    """Connect to the socket at `path`. `timeout` also applies to later operations on it."""
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.settimeout(timeout)
        with address(path) as where:
            connected.connect(where)
    except BaseException:
        connected.close()
        raise
    return connected


def is_served(path: Path) -> bool:
    """Whether a process listens at `path`."""
    try:
        connect(path).close()
    except OSError:
        return False
    return True


def peer_credentials(connected: socket.socket) -> tuple[int, int, int]:
    """The process, user and group of the other side when it connected."""
    form = "3i"
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    pid, uid, gid = struct.unpack(form, data)
    return pid, uid, gid
