"""A session's streams survive cuts. Uses a real session server, without SSH and jails."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from pathlib import Path

import pytest

from seer.errors import HostUnreachableError, SandboxLostError
from seer.providers.remote.controller._code_archive import code_archive
from seer.providers.remote.controller._link import Link, Ran, Wire
from seer.providers.remote.controller._session import RemoteSession

pytestmark = pytest.mark.full

LEASE = 6.0
"""Seconds; longer than a busy machine keeps a process waiting."""


class _LocalWire(Wire):
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def close(self) -> None:
        self.writer.close()


class LocalLink(Link):
    """Connects to Unix sockets of this host, and can cut connections or refuse new ones."""

    name = "here"

    def __init__(self) -> None:
        self.refuses = False
        self.wires: list[_LocalWire] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
    ) -> Ran:
        raise HostUnreachableError("no programs here")

    async def dial(
        self, path: str, *, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Wire:
        if self.refuses:
            raise HostUnreachableError("refused")
        reader, writer = await asyncio.open_unix_connection(path)

        async def pump() -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    on_data(data)
            on_end()

        task = asyncio.create_task(pump())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        wire = _LocalWire(writer)
        self.wires.append(wire)
        return wire

    def cut(self) -> None:
        for wire in self.wires:
            wire.writer.transport.abort()
        self.wires.clear()

    async def close(self) -> None:
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Host:
    """A folder with echoing sockets for keeper and steward, and a real session server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._servers: list[asyncio.Server] = []

    async def start(self, lease: float) -> None:
        for name in ("keeper.sock", "steward.sock"):
            server = await asyncio.start_unix_server(self._echo, str(self.folder / name))
            self._servers.append(server)
        ours, theirs = socket.socketpair()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / "porter.sock"))
        listener.listen()
        code = (
            f"import sys; sys.path.insert(0, {str(_unpacked(self.folder))!r}); "
            "from seer_remote.session_server import main; main()"
        )
        numbers = [str(listener.fileno()), str(theirs.fileno()), str(int(lease * 1000))]
        self.server = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-I", "-S", "-c", code, *numbers, str(self.folder)],
            pass_fds=(listener.fileno(), theirs.fileno()),
        )
        theirs.close()
        listener.close()
        reader, self._control = await asyncio.open_unix_connection(sock=ours)
        self._holding = asyncio.create_task(self._hold(reader))

    async def _hold(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(100):
            self._control.write(data.upper())
        self.held.set()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.close()
        self._control.close()
        self._holding.cancel()
        await asyncio.gather(self._holding, return_exceptions=True)
        await asyncio.to_thread(self.server.wait, 60)


def _unpacked(folder: Path) -> Path:
    name, packed = code_archive()
    target = folder / name
    target.mkdir()
    subprocess.run(["tar", "-xzf", "-", "-C", target], input=packed, check=True)
    return target


@pytest.fixture
async def host(tmp_path: Path) -> AsyncGenerator[Host]:
    made = Host(tmp_path)
    await made.start(lease=LEASE)
    yield made
    await made.close()


@pytest.fixture
async def link() -> AsyncGenerator[LocalLink]:
    made = LocalLink()
    yield made
    await made.close()


async def _opened(host: Host, link: LocalLink) -> RemoteSession:
    session = RemoteSession(link, str(host.folder / "porter.sock"), lease=LEASE)
    await session.start()
    return session


async def test_bytes_pass_both_ways_through_many_cuts(host: Host, link: LocalLink) -> None:
    session = await _opened(host, link)
    reader, writer = await session.open("steward", asyncio.StreamReaderProtocol)
    data = os.urandom(3_000_000)

    async def feed() -> None:
        for start in range(0, len(data), 100_000):
            writer.write(data[start : start + 100_000])
            await writer.drain()
            if start % 500_000 == 0:
                link.cut()

    feeding = asyncio.create_task(feed())
    async with asyncio.timeout(60):
        assert await reader.readexactly(len(data)) == data
    await feeding
    assert session.cuts >= 1
    await session.close()


async def test_the_first_line_to_the_keeper_is_the_one_that_holds(
    host: Host, link: LocalLink
) -> None:
    session = await _opened(host, link)
    reader, writer = await session.open("keeper", asyncio.StreamReaderProtocol)
    writer.write(b"held")
    assert await reader.readexactly(4) == b"HELD"
    again_reader, again = await session.open("keeper", asyncio.StreamReaderProtocol)
    again.write(b"echo")
    assert await again_reader.readexactly(4) == b"echo"
    assert not host.held.is_set()
    await session.close()
    async with asyncio.timeout(30):
        await host.held.wait()


async def test_streams_lead_nowhere_else(host: Host, link: LocalLink) -> None:
    session = await _opened(host, link)
    reader, _ = await session.open("../../etc/passwd", asyncio.StreamReaderProtocol)
    with pytest.raises(ConnectionResetError, match="Permission denied"):
        await reader.read(1)
    await session.close()


async def test_a_session_that_is_cut_for_too_long_ends_on_both_sides(
    host: Host, link: LocalLink
) -> None:
    session = await _opened(host, link)
    _, keeper = await session.open("keeper", asyncio.StreamReaderProtocol)
    reader, writer = await session.open("steward", asyncio.StreamReaderProtocol)
    link.refuses = True
    link.cut()
    async with asyncio.timeout(30):
        with pytest.raises(ConnectionAbortedError, match="could not be reached for 6 s"):
            await reader.read(1)
        await host.held.wait()
    with pytest.raises(SandboxLostError):
        await session.open("steward", asyncio.StreamReaderProtocol)
    assert keeper.is_closing() and writer.is_closing()
    await session.close()


async def test_a_stranger_cannot_resume_a_session(host: Host, link: LocalLink) -> None:
    session = await _opened(host, link)
    other = RemoteSession(link, str(host.folder / "porter.sock"), lease=LEASE)
    await other.start()
    other_reader, other_writer = await other.open("steward", asyncio.StreamReaderProtocol)
    other_writer.write(b"mine")
    assert await other_reader.readexactly(4) == b"mine"
    await other.close()
    reader, writer = await session.open("steward", asyncio.StreamReaderProtocol)
    writer.write(b"still here")
    assert await reader.readexactly(10) == b"still here"
    await session.close()


async def test_a_slow_reader_holds_its_writer_up_and_nobody_else(
    host: Host, link: LocalLink
) -> None:
    session = await _opened(host, link)
    slow_reader, slow = await session.open("steward", asyncio.StreamReaderProtocol)
    slow.write(b"x" * (16 << 20))
    reader, writer = await session.open("steward", asyncio.StreamReaderProtocol)
    writer.write(b"quick")
    async with asyncio.timeout(30):
        assert await reader.readexactly(5) == b"quick"
        assert slow.transport.get_write_buffer_size() > 0
        assert len(await slow_reader.readexactly(16 << 20)) == 16 << 20
    await session.close()
