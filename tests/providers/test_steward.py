"""The steward over other connections than the local provider's, as for remote machines."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from seer.errors import RemoteFileError
from seer.providers import Channel, MachineSpec, get_provider
from seer.providers.local._machine import LocalMachine

pytestmark = pytest.mark.full

_CONNECT = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(b"x" * 3_000_000)
peer.shutdown(socket.SHUT_WR)
print(len(peer.makefile("rb").read()))
"""
_ECHO = """
import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind("echo.sock")
server.listen()
print("ready", flush=True)
peer = server.accept()[0]
while data := peer.recv(65536):
    peer.sendall(data)
"""


@asynccontextmanager
async def machine() -> AsyncGenerator[LocalMachine]:
    """A local machine, whose steward is used as if it were far away."""
    made = await get_provider("local").start(MachineSpec(isolation="bubblewrap"))
    assert isinstance(made, LocalMachine)
    try:
        yield made
    finally:
        await made.terminate()


async def _all(channel: Channel) -> bytes:
    parts: list[bytes] = []
    while data := await channel.read():
        parts.append(data)
    return b"".join(parts)


async def test_listening_through_the_steward() -> None:
    async with machine() as made:
        path = f"{made.layout.run}/far.sock"
        async with made.steward.listen(path) as listener:
            argv = [made.layout.python, "-c", _CONNECT, path]
            for _ in range(2):
                running = asyncio.create_task(made.exec(argv, timeout=60))
                async with asyncio.timeout(30):
                    channel = await anext(listener)
                    assert len(await _all(channel)) == 3_000_000
                await channel.write(b"y" * 1_000_000)
                await channel.close()
                assert (await running).stdout == b"1000000\n"
        with pytest.raises(RemoteFileError):
            await made.stat(path)


async def test_a_name_in_use_cannot_be_listened_on_through_the_steward() -> None:
    async with machine() as made:
        await made.write_file("taken", b"")
        with pytest.raises(RemoteFileError):
            async with made.steward.listen("taken"):
                raise AssertionError("it was bound")


async def test_connecting_through_the_steward() -> None:
    async with machine() as made:
        process = await made.spawn([made.layout.python, "-c", _ECHO])
        await anext(process.output())
        channel = await made.steward.connect("echo.sock")
        data = os.urandom(1 << 20) * 4
        sending = asyncio.create_task(channel.write(data))
        back = b""
        while len(back) < len(data):
            back += await channel.read()
        await sending
        assert back == data
        await channel.close()
        assert await process.wait() == 0, "the program saw the end of the stream"
        await process.close()
