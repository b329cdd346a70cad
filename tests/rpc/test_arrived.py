"""At the end of a run, a gate reads what has arrived, and no peer can make it read on and on."""

import socket
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from seer.rpc.server._connection import Connection
from seer.rpc.server._poller import Poller
from seer.rpc.server._socket import read_arrived

HEAD = b"POST /v1/call/f HTTP/1.1\r\ncontent-length: 1000\r\n\r\n"


class Gate:
    """Notes what a connection passes on."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.refused: list[int] = []

    def handle(self, connection: Connection, request: object, body: bytes) -> None:
        connection.busy = False
        self.handled.append(bytes(body))

    def refuse(self, connection: Connection, error: Any) -> None:
        connection.closing = True
        self.refused.append(error.status)

    def reserve(self, connection: Connection, request: object) -> None: ...

    def unreserve(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...


class Answered:
    """A connection whose peer sends something whenever the gate has read something."""

    def __init__(self, gate: Gate, more: bytes) -> None:
        ours, self.peer = socket.socketpair()
        owner: Any = SimpleNamespace(clogged=set())
        loop: Any = Poller()
        within: Any = gate
        self.connection = Connection(ours, owner, loop, within, 1 << 30)
        self.fd = self.connection.fd
        self.reads = 0
        self._more = more

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @property
    def partial(self) -> bool:
        return self.connection.partial

    def on_readable(self) -> int | None:
        self.reads += 1
        assert self.reads < 100, "the gate reads as long as the peer sends"
        got = self.connection.on_readable()
        self.peer.send(self._more)
        return got


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def dripping(gate: Gate, request: pytest.FixtureRequest) -> Generator[Answered]:
    made = Answered(gate, request.param)
    yield made
    made.connection.close()
    made.peer.close()


@pytest.mark.parametrize("dripping", [b"x"], indirect=True)
def test_what_comes_while_a_body_is_read_is_left_for_later(dripping: Answered, gate: Gate) -> None:
    dripping.peer.send(HEAD + b"x" * 10)
    read_arrived([dripping])
    assert (dripping.reads, gate.handled) == (1, [])
    dripping.peer.send(b"x" * 988)
    read_arrived([dripping])
    assert gate.handled == [] and dripping.reads <= 3
    while not gate.handled:
        dripping.connection.on_readable()
    assert gate.handled == [b"x" * 1000]


@pytest.mark.parametrize("dripping", [b"z"], indirect=True)
@pytest.mark.parametrize("first", [b"P" * 20_000, b"nonsense\r\n\r\n"])
def test_a_refused_request_is_read_no_further(dripping: Answered, gate: Gate, first: bytes) -> None:
    dripping.peer.send(b"P" * 10)
    dripping.connection.on_readable()
    dripping.peer.send(first)
    read_arrived([dripping])
    assert dripping.reads == 1
    assert len(gate.refused) == 1
    assert not dripping.partial
    # Not even if all of it comes: it was answered.
    dripping.connection.on_readable()
    assert gate.handled == []


@pytest.mark.parametrize("dripping", [b""], indirect=True)
def test_a_request_that_arrived_in_many_parts_is_read_whole(dripping: Answered, gate: Gate) -> None:
    dripping.peer.send(HEAD[:20])
    dripping.connection.on_readable()
    rest = HEAD[20:] + b"x" * 1000
    for start in range(0, len(rest), 30):
        dripping.peer.send(rest[start : start + 30])
    read_arrived([dripping])
    assert gate.handled == [b"x" * 1000]
