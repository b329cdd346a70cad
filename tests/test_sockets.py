"""No connection, and no file of others, is lost when a wait is cancelled at any moment.

The moments are within an event loop's steps, where only this module's functions can be driven.
"""

import asyncio
import gc
import os
import socket
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from seer._sockets import Acceptor, accept, connect_in_thread
from seer._unix_sockets import connect, listen, serve


def listening() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


@contextmanager
def nothing_unclosed() -> Generator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # leftovers of other tests
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_accept_leaves_no_open_connection(steps: int) -> None:
    with nothing_unclosed(), listening() as listener:
        accepting = asyncio.create_task(accept(listener))
        await asyncio.sleep(0)
        with socket.create_connection(listener.getsockname()):
            for _ in range(steps):
                await asyncio.sleep(0)
            accepting.cancel()
            result = (await asyncio.gather(accepting, return_exceptions=True))[0]
            if isinstance(result, socket.socket):
                result.close()
        del result


@pytest.mark.parametrize("steps", range(6))
async def test_closing_an_acceptor_closes_every_connection(steps: int) -> None:
    begun: list[socket.socket] = []

    async def serve(connection: socket.socket) -> None:
        with connection:
            begun.append(connection)
            await asyncio.Event().wait()

    with nothing_unclosed():
        listener = listening()
        acceptor = Acceptor(listener, serve)
        await asyncio.sleep(0)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
        for _ in range(steps):
            await asyncio.sleep(0)
        await acceptor.close()
        await acceptor.close()
        assert all(connection.fileno() == -1 for connection in begun)
        for client in clients:
            client.close()
        begun.clear()


async def test_connections_beyond_the_limit_wait_for_room() -> None:
    begun: asyncio.Queue[socket.socket] = asyncio.Queue()
    go = asyncio.Event()

    async def serve(connection: socket.socket) -> None:
        with connection:
            begun.put_nowait(connection)
            await go.wait()
            go.clear()

    listener = listening()
    acceptor = Acceptor(listener, serve, limit=1)
    with socket.create_connection(listener.getsockname()) as first:
        await begun.get()
        with socket.create_connection(listener.getsockname()):
            await asyncio.sleep(0.05)
            assert begun.empty()
            go.set()
            await begun.get()
            assert first.recv(1) == b""
            await acceptor.close()


async def test_a_connection_made_for_nobody_is_closed() -> None:
    go, made = threading.Event(), threading.Event()

    def connect(address: tuple[str, int]) -> socket.socket:
        assert go.wait(60)
        try:
            return socket.create_connection(address)
        finally:
            made.set()

    with nothing_unclosed(), listening() as listener:
        connecting = asyncio.create_task(
            connect_in_thread(partial(connect, listener.getsockname()))
        )
        await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.wait([connecting])
        go.set()
        await asyncio.to_thread(made.wait, 60)
        peer = await accept(listener)
        with peer:
            assert await asyncio.get_running_loop().sock_recv(peer, 1) == b""


async def test_an_accept_goes_on_when_descriptors_are_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seer._sockets._RETRY_DELAY", 0.0)

    class Short(socket.socket):
        refusals = 2

        def accept(self) -> tuple[socket.socket, object]:
            if self.refusals:
                self.refusals -= 1
                raise OSError(24, "Too many open files")
            return super().accept()

    with Short() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        with socket.create_connection(listener.getsockname()):
            (await accept(listener)).close()
        assert listener.refusals == 0


async def test_a_served_socket_leaves_files_of_other_folders_alone(tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    other = tmp_path / "other" / "a.sock"
    other.write_text("not to be removed")
    with listen(tmp_path / "own" / "a.sock", 4) as listener:
        # The number that its folder's descriptor had is now another folder's, then a file's.
        number = int(Path(listener.getsockname()).parent.name)
        for opened in (other.parent, other):
            fd = os.open(opened, os.O_RDONLY)
            os.dup2(fd, number)
            try:
                server = await serve(echo, listener.dup(), limit=100)
                with connect(tmp_path / "own" / "a.sock") as connected:
                    connected.shutdown(socket.SHUT_WR)
                    assert await asyncio.to_thread(connected.recv, 1) == b""
                server.close()
                await server.wait_closed()
            finally:
                for held in {fd, number}:
                    os.close(held)
    assert other.read_text() == "not to be removed"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read())
    writer.close()
    await writer.wait_closed()
