"""Checks of connections into and out of a machine."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from seer.errors import RemoteFileError
from seer.providers import Channel, Machine
from seer.testing.provider_contract._subject import (
    Subject,
    checks_in,
    equal,
    expect,
    python,
    raises,
    sh,
)

_ECHO = """
import os, socket, sys, threading
kind, where = sys.argv[1:]
if kind == "unix":
    server = socket.socket(socket.AF_UNIX)
    server.bind(where)
else:
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
server.listen(64)
print(where if kind == "unix" else server.getsockname()[1], flush=True)
def serve(peer):
    with peer:
        while data := peer.recv(65536):
            peer.sendall(data)
while True:
    threading.Thread(target=serve, args=[server.accept()[0]], daemon=True).start()
"""

_CLIENT = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(sys.argv[2].encode() * int(sys.argv[3]))
peer.shutdown(socket.SHUT_WR)
answer = b""
while data := peer.recv(65536):
    answer += data
print(len(answer), answer[:20].decode())
"""

_THROUGH_GATE = """
import array, os, socket
address = os.environ["SEER_GATE_CONTRACT"].removeprefix("frames:")
kind, _, rest = address.partition(":")
for turn in range(3):
    if kind == "path":
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(rest)
    else:
        connector = socket.socket(fileno=os.dup(int(rest)))
        connector.send(b"c")
        note, extra, _, _ = connector.recvmsg(16, socket.CMSG_SPACE(4))
        peer = socket.socket(fileno=array.array("i", extra[0][2])[0])
    peer.sendall(b"ping")
    print(peer.recv(10).decode())
"""


def _open_to_all(path: Path) -> None:
    path.parent.chmod(0o755)
    path.chmod(0o777)


@asynccontextmanager
async def _host_socket() -> AsyncGenerator[Path]:
    """A socket of this host that answers a ping."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "host.sock")
        async with await asyncio.start_unix_server(_answer, str(path)):
            await asyncio.to_thread(_open_to_all, path)
            yield path


@asynccontextmanager
async def _echo(machine: Machine, kind: str, where: str) -> AsyncGenerator[str]:
    process = await machine.spawn([machine.layout.python, "-c", _ECHO, kind, where])
    try:
        stream, line = await anext(process.output())
        expect(stream == "stdout", f"the server did not start: {line!r}")
        yield line.decode().strip()
    finally:
        await process.close()


async def _read_all(channel: Channel) -> bytes:
    parts: list[bytes] = []
    while data := await channel.read():
        parts.append(data)
    return b"".join(parts)


async def _read_exactly(channel: Channel, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = await channel.read(count - len(data))
        expect(bool(part), f"the stream ended after {len(data)} of {count} bytes")
        data += part
    return data


async def unix_sockets_in_the_machine_can_be_reached(subject: Subject) -> None:
    machine = await subject.machine()
    async with _echo(machine, "unix", f"{machine.layout.run}/echo.sock") as path:
        channel = await machine.connect(path)
        await channel.write(b"hello")
        equal(await _read_exactly(channel, 5), b"hello", "echo")
        await channel.close()
        await channel.close()
    await machine.remove(path)


async def sockets_with_long_paths_can_be_reached(subject: Subject) -> None:
    machine = await subject.machine()
    folder = f"{machine.layout.run}/{'long' * 20}"
    await machine.make_dir(folder)
    code = _ECHO.replace("server.bind(where)", "os.chdir(os.path.dirname(where)); server.bind('s')")
    process = await machine.spawn([machine.layout.python, "-c", code, "unix", f"{folder}/s"])
    await anext(process.output())
    channel = await machine.connect(f"{folder}/s")
    await channel.write(b"far")
    equal(await _read_exactly(channel, 3), b"far", "echo")
    await channel.close()
    await process.close()


async def much_data_crosses_a_connection(subject: Subject) -> None:
    machine = await subject.machine()
    data = os.urandom(1 << 20) * 16
    async with _echo(machine, "unix", f"{machine.layout.run}/bulk.sock") as path:
        channel = await machine.connect(path)

        async def send() -> None:
            for start in range(0, len(data), 100_000):
                await channel.write(data[start : start + 100_000])

        sending = asyncio.create_task(send())
        back = await _read_exactly(channel, len(data))
        await sending
        expect(back == data, "the same bytes came back")
        await channel.close()


async def many_connections_at_once(subject: Subject) -> None:
    machine = await subject.machine()
    async with _echo(machine, "unix", f"{machine.layout.run}/many.sock") as path:
        channels = await asyncio.gather(*(machine.connect(path) for _ in range(20)))
        for number, channel in enumerate(channels):
            await channel.write(str(number).encode())
        for number, channel in enumerate(channels):
            wanted = str(number).encode()
            equal(await _read_exactly(channel, len(wanted)), wanted, "echo")
            await channel.close()


async def a_missing_socket_is_an_error(subject: Subject) -> None:
    machine = await subject.machine()
    await raises(RemoteFileError, machine.connect(f"{machine.layout.run}/nothing"), "no socket")
    await machine.write_file(f"{machine.layout.run}/file", b"")
    await raises(RemoteFileError, machine.connect(f"{machine.layout.run}/file"), "a plain file")


async def a_planted_link_leads_nowhere(subject: Subject) -> None:
    machine = await subject.machine()
    async with _host_socket() as path:
        await sh(machine, f"ln -sfn {path} {machine.layout.run}/planted")
        await sh(machine, f"ln -sfn {path.parent} {machine.layout.run}/folder")
        for name in ("planted", "folder/host.sock"):
            attempt = machine.connect(f"{machine.layout.run}/{name}")
            await raises(RemoteFileError, attempt, f"the planted link {name!r}")


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"pong" if await reader.read(4) == b"ping" else b"what?")
    writer.close()


async def ports_in_the_machine_can_be_reached(subject: Subject) -> None:
    machine = await subject.machine()
    async with _echo(machine, "tcp", "") as port:
        channel = await machine.connect(int(port))
        await channel.write(b"over tcp")
        equal(await _read_exactly(channel, 8), b"over tcp", "echo")
        await channel.close()


async def a_port_where_nothing_listens_is_an_error(subject: Subject) -> None:
    machine = await subject.machine()
    await raises(RemoteFileError, machine.connect(9), "a port where nothing listens")
    await raises(ValueError, machine.connect(0), "no port at all")


async def programs_in_the_machine_can_connect_out_to_a_listener(subject: Subject) -> None:
    machine = await subject.machine()
    path = f"{machine.layout.run}/outward.sock"
    async with machine.listen(path) as listener:
        running = asyncio.create_task(python(machine, _CLIENT, path, "abc", "100000"))
        channel = await anext(listener)
        data = await _read_all(channel)
        equal(data, b"abc" * 100_000, "what the program sent")
        await channel.write(b"answer")
        await channel.close()
        equal((await running).decode().split(), ["6", "answer"], "what the program read")
    await raises(RemoteFileError, machine.stat(path), "the socket after the listener was closed")


async def a_listener_cannot_take_a_name_that_is_in_use(subject: Subject) -> None:
    machine = await subject.machine()
    path = f"{machine.layout.run}/taken"
    await machine.write_file(path, b"here first")

    async def listen() -> None:
        async with machine.listen(path):
            return

    await raises(RemoteFileError, listen(), "a name in use")
    equal(await machine.read_file(path), b"here first", "what was there")


async def gates_of_the_spec_can_be_reached_from_inside(subject: Subject) -> None:
    async with _host_socket() as path, subject.fresh(gates={"contract": path}) as machine:
        out = await python(machine, _THROUGH_GATE)
        equal(out.split(), [b"pong"] * 3, "answers through the gate")


CHECKS = checks_in(globals())
