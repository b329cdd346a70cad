"""The reader of a kernel's sockets, with peers that follow the protocol and peers that do not.

It tests the reader itself, with bytes that no real kernel sends.
"""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.errors import ProtocolError, SandboxLostError
from seer.execution.kernel._zmtp import ZmtpConnection
from seer.providers import Channel

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
HELLO = GREETING + READY


class ScriptedChannel(Channel):
    """Gives a kernel's data in pieces of one size, and keeps what it receives."""

    def __init__(self, data: bytes, piece: int = 7) -> None:
        self.data = data
        self.piece = piece
        self.sent = b""
        self.closed = False

    async def read(self, n: int = 65536) -> bytes:
        size = min(n, self.piece)
        data, self.data = self.data[:size], self.data[size:]
        return data

    async def write(self, data: bytes) -> None:
        self.sent += data

    async def close(self) -> None:
        self.closed = True


def frame(data: bytes, *, more: bool = False) -> bytes:
    if len(data) < 256:
        return bytes([int(more), len(data)]) + data
    return bytes([2 | int(more)]) + len(data).to_bytes(8, "big") + data


async def opened(data: bytes, limit: int = 1000) -> ZmtpConnection:
    return await ZmtpConnection.open(ScriptedChannel(HELLO + data), "SUB", limit=limit)


async def test_messages_arrive_part_by_part_however_the_bytes_are_cut() -> None:
    wire = frame(b"topic", more=True) + frame(b"x" * 300, more=True) + frame(b"")
    for piece in (1, 5, 10_000):
        channel = ScriptedChannel(HELLO + wire + frame(b"next"), piece)
        connection = await ZmtpConnection.open(channel, "SUB", limit=1000)
        assert await connection.receive() == [b"topic", b"x" * 300, b""]
        assert await connection.receive() == [b"next"]


async def test_what_is_sent_can_be_read_back() -> None:
    channel = ScriptedChannel(HELLO)
    connection = await ZmtpConnection.open(channel, "DEALER", limit=1000)
    start = len(channel.sent)
    await connection.subscribe()
    await connection.send([b"a", b"b" * 1000])
    again = await opened(channel.sent[start:], limit=5000)
    assert await again.receive() == [b"\x01"]
    assert await again.receive() == [b"a", b"b" * 1000]


async def test_a_message_that_is_too_large_is_skipped_and_the_next_one_read() -> None:
    wire = frame(b"a" * 600, more=True) + frame(b"b" * 600) + frame(b"small")
    connection = await opened(wire, limit=1000)
    assert await connection.receive() is None
    assert await connection.receive() == [b"small"]


async def test_a_huge_promise_costs_no_memory() -> None:
    connection = await opened(b"\x02" + (1 << 62).to_bytes(8, "big") + b"only this")
    with pytest.raises(SandboxLostError):
        await connection.receive()


async def test_a_message_of_endless_parts_is_skipped() -> None:
    wire = frame(b"p", more=True) * 500 + frame(b"last") + frame(b"next")
    connection = await opened(wire)
    assert await connection.receive() is None
    assert await connection.receive() == [b"next"]


async def test_commands_between_frames_are_passed_over() -> None:
    connection = await opened(b"\x04\x05\x04PING" + frame(b"a"))
    assert await connection.receive() == [b"a"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64),
        GREETING[:-1],
        b"\xff" + bytes(8) + b"\x7f\x01" + bytes(64),
        GREETING + b"\x04\x05\x05ERRO",
        GREETING + b"\x00\x05READY",
        GREETING + b"\x06" + (1 << 40).to_bytes(8, "big"),
    ],
)
async def test_a_peer_that_is_no_kernel_is_refused_and_let_go(data: bytes) -> None:
    channel = ScriptedChannel(data)
    with pytest.raises((ProtocolError, SandboxLostError)):
        await ZmtpConnection.open(channel, "SUB", limit=1000)
    assert channel.closed


async def test_unknown_flags_end_the_connection() -> None:
    connection = await opened(b"\xf0\x00")
    with pytest.raises(ProtocolError, match="flags"):
        await connection.receive()


@given(st.binary(max_size=400))
async def test_no_bytes_do_more_than_end_the_connection(data: bytes) -> None:
    with contextlib.suppress(ProtocolError, SandboxLostError):
        connection = await opened(data, limit=100)
        for _ in range(500):
            parts = await connection.receive()
            assert parts is None or sum(map(len, parts)) <= 100
