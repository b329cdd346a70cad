"""Two streams that are joined pass on everything, at the pace of the slower one."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator

import pytest

from seer.providers.client._relay import Streams, splice

_LIMIT = 64 * 1024


async def _pair() -> tuple[Streams, Streams]:
    one, other = socket.socketpair()
    return (
        await asyncio.open_unix_connection(sock=one, limit=_LIMIT),
        await asyncio.open_unix_connection(sock=other, limit=_LIMIT),
    )


@pytest.fixture
async def ends() -> AsyncGenerator[tuple[Streams, Streams, asyncio.Task[None]]]:
    """The two outer ends of a splice, and the splice."""
    left, near = await _pair()
    right, far = await _pair()
    # Sent before the streams are joined, and not lost.
    left[1].write(b"early ")
    await asyncio.sleep(0)
    joined = asyncio.create_task(splice(near, far))
    yield left, right, joined
    joined.cancel()
    await asyncio.gather(joined, return_exceptions=True)
    for _, writer in (left, near, right, far):
        writer.close()


Ends = tuple[Streams, Streams, asyncio.Task[None]]


async def test_bytes_pass_both_ways(ends: Ends) -> None:
    (left_reader, left), (right_reader, right), _ = ends
    left.write(b"bird")
    assert await right_reader.readexactly(10) == b"early bird"
    right.write(b"worm")
    assert await left_reader.readexactly(4) == b"worm"


async def test_a_slow_reader_is_waited_for(ends: Ends) -> None:
    (_, left), (right_reader, _), _ = ends
    data = os.urandom(8 << 20)

    async def feed() -> None:
        left.write(data)
        await left.drain()

    feeding = asyncio.create_task(feed())
    await asyncio.wait({feeding}, timeout=0.2)
    assert not feeding.done(), "8 MB went into buffers"
    assert await right_reader.readexactly(len(data) + 6) == b"early " + data
    await feeding


async def test_one_direction_may_end_before_the_other(ends: Ends) -> None:
    (left_reader, left), (right_reader, right), joined = ends
    left.write_eof()
    assert await right_reader.read() == b"early "
    assert not joined.done()
    right.write(b"answer")
    right.write_eof()
    assert await left_reader.read() == b"answer"
    async with asyncio.timeout(30):
        await joined


async def test_a_stream_that_is_lost_ends_both(ends: Ends) -> None:
    (_, left), (_, right), joined = ends
    left.transport.abort()
    right.transport.abort()
    async with asyncio.timeout(30):
        await joined
