"""Connections to sockets in a folder that an agent can write to follow no planted link.

It makes connections itself, to folders that a hostile agent could prepare.
"""

import asyncio
import os
import socket
from collections.abc import Generator
from pathlib import Path
from typing import cast

import pytest

from seer.errors import SandboxLostError
from seer.execution._sockets import SocketChannel, connect_in_machine, relay
from seer.providers import Channel, Machine
from seer.providers._spec import Layout


class RunFolder:
    """The part of a machine on this host that `connect_in_machine` uses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = Layout(
            workdir="/w", home="/h", tmp="/t", run="/run/seer", models="/m", python="python"
        )

    def socket_path(self, path: str) -> Path:
        return Path(path.replace("/run/seer", str(self.root), 1))


def listen(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
    listener.listen()
    listener.setblocking(False)
    return listener


@pytest.fixture
def host_socket(tmp_path: Path) -> Generator[socket.socket]:
    """A socket of the host that no agent may reach."""
    with listen(tmp_path / "host" / "docker.sock") as listener:
        yield listener


def machine(tmp_path: Path) -> Machine:
    return cast("Machine", RunFolder(tmp_path / "run"))


async def test_a_socket_in_the_folder_is_reached(tmp_path: Path) -> None:
    with listen(tmp_path / "run" / "k1" / "z-1") as listener:
        channel = await connect_in_machine(machine(tmp_path), "/run/seer/k1/z-1")
        near, _ = listener.accept()
        with near:
            await channel.write(b"hello")
            assert near.recv(10) == b"hello"
            near.sendall(b"back")
            assert await channel.read() == b"back"
        assert await channel.read() == b""
        await channel.close()
        await channel.close()
        with pytest.raises(SandboxLostError):
            await channel.write(b"x")


@pytest.mark.parametrize("plant", ["link", "folder link", "file", "fifo", "nothing", "dots"])
async def test_what_was_planted_in_its_place_is_not_followed(
    tmp_path: Path, host_socket: socket.socket, plant: str
) -> None:
    folder = tmp_path / "run" / "k1"
    folder.mkdir(parents=True)
    path = "/run/seer/k1/z-1"
    match plant:
        case "link":
            (folder / "z-1").symlink_to(tmp_path / "host" / "docker.sock")
        case "folder link":
            folder.rmdir()
            folder.symlink_to(tmp_path / "host")
            path = "/run/seer/k1/docker.sock"
        case "file":
            (folder / "z-1").write_text("x")
        case "fifo":
            os.mkfifo(folder / "z-1")
        case "dots":
            path = "/run/seer/../host/docker.sock"
        case _:
            pass
    with pytest.raises(SandboxLostError, match="nothing listens"):
        await connect_in_machine(machine(tmp_path), path)
    with pytest.raises(BlockingIOError):
        host_socket.accept()


class Pipe(Channel):
    """A reader that gives its prepared data, then ends."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.got = b""
        self.closed = False

    async def read(self, n: int = 65536) -> bytes:
        data, self.data = self.data, b""
        return data

    async def write(self, data: bytes) -> None:
        self.got += data

    async def close(self) -> None:
        self.closed = True


async def test_a_relay_passes_bytes_and_closes_both_ends() -> None:
    one, other = Pipe(b"from one"), Pipe(b"from other")
    await relay(one, other)
    assert (one.got, other.got) == (b"from other", b"from one")
    assert one.closed
    assert other.closed


class Flood(socket.socket):
    """A peer that always has more to read."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        return b"x" * bufsize


async def test_a_peer_that_always_has_more_does_not_hold_the_loop() -> None:
    """A kernel can send one frame without end, as fast as it is read."""
    with Flood(socket.AF_UNIX) as endless:
        channel = SocketChannel(endless)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        for _ in range(1000):
            await channel.read(1024)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert turns > 50
