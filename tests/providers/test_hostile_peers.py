"""Stewards and keepers survive any input, and controllers survive any answer."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from seer.errors import SandboxLostError, SeerError
from seer.providers import Channel, ExecResult, MachineSpec, get_provider
from seer.providers._base import CAPTURE_LIMIT, run_to_end
from seer.providers.agent import wire
from seer.providers.client._connection import Connection
from seer.providers.client._steward import StewardClient
from seer.providers.local._machine import LocalMachine
from seer.providers.local._record import machines_dir

pytestmark = pytest.mark.full

ROUNDS = int(os.environ.get("SEER_FUZZ_ROUNDS", "300"))


@asynccontextmanager
async def machine() -> AsyncGenerator[LocalMachine]:
    """A local machine."""
    made = await get_provider("local").start(MachineSpec())
    assert isinstance(made, LocalMachine)
    try:
        yield made
    finally:
        await made.terminate()


def junk(chosen: random.Random) -> bytes:
    """Bytes that are almost valid, with one of many errors."""
    value: wire.Encodable = chosen.choice(
        [
            {"op": chosen.choice(["exec", "read", "write", "list", "connect", "listen", "abort"])},
            {"op": "exec", "argv": chosen.choice([[], "x", [1], {}, ["sleep", "0"]])},
            {
                "op": "exec",
                "argv": ["sleep", "0"],
                "env": chosen.choice([[], {"a": 1}, {"=": "x"}]),
            },
            {"op": "exec", "argv": ["cat"], "stdin": 1, "pty": chosen.choice([["1"], ["a", "b"]])},
            {"op": "read", "path": "x" * chosen.randrange(9000), "offset": -1, "length": 2**70},
            {"op": "read", "path": chosen.choice(["a\0b", "", "/", "\udcff", 7])},
            {"op": "write", "path": "fuzz", "mode": -1, "append": 2**65},
            {"op": "connect", "port": chosen.choice([0, -1, 2**20, 9])},
            {"op": chosen.choice(["renew", "hold", "detach", "look", "status"]), "idle_ms": "x"},
            {"op": chosen.choice(["nothing", "", 1, []])},
            [],
            chosen.randbytes(chosen.randrange(50)),
        ]
    )
    data = bytearray(wire.frame(chosen.choice([b"R", b"R", b"R", b"0"]), wire.encode(value)))
    for _ in range(chosen.choice([0, 0, 1, 3])):
        data[chosen.randrange(len(data))] = chosen.randrange(256)
    data += chosen.choice([b"", b"", chosen.randbytes(chosen.randrange(300)), wire.frame(b"K")])
    return bytes(data[: chosen.choice([len(data), len(data), chosen.randrange(len(data) + 1)])])


def throw(path: Path, data: bytes, *, linger: bool) -> None:
    """Send bytes to a socket and hang up, at once or after an answer."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(str(path))
        try:
            sock.sendall(data)
            if linger:
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    continue
        except OSError:
            return


async def test_a_steward_survives_hostile_requests() -> None:
    chosen = random.Random(1)
    async with machine() as made:
        path = machines_dir() / made.id / "steward.sock"
        for turn in range(ROUNDS):
            await asyncio.to_thread(throw, path, junk(chosen), linger=turn % 3 == 0)
        assert (await made.exec(["echo", "alive"])).stdout == b"alive\n"


async def test_a_keeper_survives_hostile_requests() -> None:
    chosen = random.Random(2)
    async with machine() as made:
        path = machines_dir() / made.id / "keeper.sock"
        for turn in range(ROUNDS):
            data = junk(chosen)
            if b"terminate" not in data and b"detach" not in data:
                await asyncio.to_thread(throw, path, data, linger=turn % 3 == 0)
        assert (await made.exec(["echo", "alive"])).stdout == b"alive\n"
        assert [status.id for status in await get_provider("local").list()] == [made.id]


async def test_idle_connections_do_not_wear_a_machine_out() -> None:
    async with machine() as made:
        held: list[socket.socket] = []
        for name in ("keeper.sock", "steward.sock"):
            for _ in range(100):
                sock = socket.socket(socket.AF_UNIX)
                sock.connect(str(machines_dir() / made.id / name))
                sock.send(b"\0\0")
                held.append(sock)
        assert (await made.exec(["echo", "alive"])).stdout == b"alive\n"
        for sock in held:
            sock.close()


class _Impostor(StewardClient):
    """The client of a steward that answers with given bytes."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(self._answer, lost=self._gone, check_limits=self._no_limits)
        self._bytes = answer
        self.held: list[socket.socket] = []

    async def _answer(self) -> Connection:
        ours, theirs = socket.socketpair()
        self.held.append(theirs)
        theirs.sendall(self._bytes)
        theirs.shutdown(socket.SHUT_WR)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return Connection(reader, writer, self._gone)

    async def _gone(self) -> SandboxLostError:
        return SandboxLostError("gone")

    async def _no_limits(self) -> None:
        return

    async def exec(self, argv: list[str]) -> ExecResult:
        return await run_to_end(
            lambda: self.spawn(argv, stdin=True),
            argv,
            stdin=b"x",
            timeout=5,
            on_output=None,
            capture_limit=CAPTURE_LIMIT,
        )


def answers(chosen: random.Random) -> bytes:
    """Answers that a steward in a compromised jail might send."""
    kinds = [wire.OK, wire.ERROR, wire.DATA, wire.END, wire.EXIT, wire.CREDIT, wire.STDOUT, b"?"]
    values: list[wire.Encodable] = [
        {},
        {"server": 1, "pid": 1},
        {"server": "x"},
        {"code": "x"},
        {"code": 3},
        {"errno": 2**70, "message": b"\xff", "path": []},
        {"errno": 2, "message": "no", "path": "p"},
        {"name": "x", "kind": "ghost", "size": 1, "mode": 1, "mtime_ns": 1},
        [{"name": 1}],
        [b"x"],
        b"text",
    ]
    parts: list[bytes] = []
    for _ in range(chosen.randrange(4)):
        payload = chosen.choice([wire.encode(chosen.choice(values)), chosen.randbytes(9), b""])
        parts.append(wire.frame(chosen.choice(kinds), payload))
    data = b"".join(parts)
    return data[: chosen.choice([len(data), chosen.randrange(len(data) + 1)])]


async def test_a_controller_survives_a_hostile_steward() -> None:
    chosen = random.Random(3)
    for _ in range(ROUNDS):
        impostor = _Impostor(answers(chosen))
        for attempt in (
            impostor.exec(["true"]),
            impostor.read_file("x"),
            impostor.write_file("x", b"data"),
            impostor.list_dir("x"),
            impostor.stat("x"),
            impostor.remove("x"),
            impostor.connect("x"),
        ):
            try:
                async with asyncio.timeout(30):
                    result = await attempt
                if isinstance(result, Channel):
                    await result.close()
            except SeerError:
                continue
            finally:
                for sock in impostor.held:
                    sock.close()
