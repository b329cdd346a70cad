"""How a client's line is classified before the MCP SDK sees it, and how its pipes are taken."""

import asyncio
import json
import os
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer._sockets import readable
from seer.mcp._lines import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    Pipes,
    Refusal,
    parse_line,
)


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": "a", "method": "ping", "params": {}},
        {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": None},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "x"}},
    ],
)
def test_messages_are_read_as_they_are(message: dict[str, Any]) -> None:
    assert parse_line(json.dumps(message).encode() + b"\r\n") == message


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"nonsense", PARSE_ERROR, None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "pi', PARSE_ERROR, None),
        (b"\xff\xfe", PARSE_ERROR, None),
        (b"[" * 100_000, PARSE_ERROR, None),
        (b"1" * 10_000, PARSE_ERROR, None),
        (b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "ping"}', PARSE_ERROR, None),
        (b"[]", INVALID_REQUEST, None),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', INVALID_REQUEST, None),
        (b"null", INVALID_REQUEST, None),
        (b"{}", INVALID_REQUEST, None),
        (b'{"id": 1, "method": "ping"}', INVALID_REQUEST, 1),
        (b'{"jsonrpc": "1.0", "id": "x", "method": "ping"}', INVALID_REQUEST, "x"),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "id": 2, "method": 3}', INVALID_REQUEST, 2),
        (b'{"jsonrpc": "2.0", "id": 2}', INVALID_REQUEST, 2),
        (b'{"jsonrpc": "2.0", "id": 2, "method": "ping", "params": [1]}', INVALID_PARAMS, 2),
        (b'{"jsonrpc": "2.0", "method": "ping", "params": 1}', INVALID_PARAMS, None),
    ],
)
def test_every_other_line_gets_an_error(
    line: bytes, code: int, request_id: int | str | None
) -> None:
    refusal = parse_line(line)
    assert isinstance(refusal, Refusal)
    answer = json.loads(refusal.answer())
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", request_id)
    assert answer["error"]["code"] == code
    assert 0 < len(answer["error"]["message"]) < 400


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_are_without_an_answer(line: bytes) -> None:
    found = parse_line(line)
    if isinstance(found, Refusal):
        assert b"\n" not in found.answer()
    else:
        assert found["jsonrpc"] == "2.0"


@pytest.mark.parametrize("steps", range(8))
async def test_a_client_that_is_given_up_while_it_arrives_sees_its_pipes_close(steps: int) -> None:
    ours, theirs = socket.socketpair()
    (reading, to_us), (from_us, writing) = os.pipe(), os.pipe()
    ours.setblocking(False)
    with ours, theirs:
        socket.send_fds(theirs, [b"1"], [reading, writing])
        os.close(reading)
        os.close(writing)
        taking = asyncio.create_task(Pipes.take(ours))
        for _ in range(steps):
            await asyncio.sleep(0)
        if not taking.cancel():
            taking.result().close()
        await asyncio.gather(taking, return_exceptions=True)
    async with asyncio.timeout(30):
        # Once no process can write any more, it only reads the end.
        await readable(from_us)
    assert os.read(from_us, 1) == b""
    with pytest.raises(BrokenPipeError):
        os.write(to_us, b"x")
    os.close(from_us)
    os.close(to_us)
