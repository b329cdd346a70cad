"""A caller that abuses the gate's protocol harms only itself; other callers are not affected."""

import array
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from seer.errors import ResultError
from seer.workspace import Library

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

FRAMES = "content-type: application/x-seer-frames"


class Peer:
    """One caller's socket, used without the client, and another caller, to see it served."""

    def __init__(self, library: Library) -> None:
        attacker: Any = library.connect()
        attacker.echo("hello")
        self.path: str = attacker._gate.address.removeprefix("path:")
        self.other: Any = library.connect()
        self._attacker = attacker

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        # Blocking, because with a timeout a full backlog would be an error instead of a wait.
        connection.connect(self.path)
        connection.settimeout(20)
        return connection

    def ask(self, data: bytes, descriptors: tuple[int, ...] = ()) -> str:
        with self.connect() as connection:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            with suppress(BrokenPipeError):  # refused at once: the answer says why
                connection.sendmsg([data], rights if descriptors else [])
            return connection.recv(65536).decode()

    def close(self) -> None:
        for tools in (self._attacker, self.other):
            tools._gate.close()

    def check_others(self) -> None:
        assert self.other.echo("still here") == "still here"


@pytest.fixture(scope="module")
def peer(library: Library) -> Iterator[Peer]:
    made = Peer(library)
    yield made
    made.check_others()
    made.close()


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request's bytes."""
    lines = [f"POST {path} HTTP/1.1", *headers, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * 20000, "431"),
        (b"GET /v1/health HTTP/1.1\r\nx: " + b"y" * 20000 + b"\r\n\r\n", "431"),
        (b"\0" * 100 + b"\r\n\r\n", "400"),
        (b"GET /v1/health HTTP/1.1\r\n\r\nGET /v1/health HTTP/1.1\r\n\r\n", "400"),
        (b"POST /v1/call/echo HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n", "4"),
        (b"POST /v1/call/echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", "411"),
        (b"POST /v1/call/echo HTTP/1.1\r\ncontent-length: -1\r\n\r\n", "400"),
        (b"POST /v1/stop HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", "404"),
        (b"POST /v1/reload HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", "404"),
        (b"POST /v1/callers HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", "404"),
        (b"GET /v1/records/0 HTTP/1.1\r\n\r\n", "404"),
        (b"POST /v1/call/__import__ HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", "404"),
        (b"POST /v1/call/../control HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", "404"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_malformed_and_foreign_requests_are_refused(peer: Peer, data: bytes, status: str) -> None:
    assert peer.ask(data).split(" ")[1].startswith(status)
    peer.check_others()


def test_extreme_deadlines_do_not_disturb_the_gate(peer: Peer) -> None:
    for deadline in ("99999999999999999999", "0", "0.0000000000000001"):
        answer = peer.ask(post("/v1/call/echo", b'{"args":["x"]}', f"seer-deadline: {deadline}"))
        assert answer.startswith("HTTP/1.1 ")
    peer.check_others()


def test_many_idle_and_half_sent_connections_do_not_keep_others_out(peer: Peer) -> None:
    with ExitStack() as stack:
        for number in range(1100):
            connection = stack.enter_context(peer.connect())
            if number % 2:
                with suppress(BrokenPipeError):
                    connection.sendall(b"POST /v1/call/echo HTTP/1.1\r\nseer-call")
        peer.check_others()
        assert " 503 " in peer.ask(b"GET /v1/health HTTP/1.1\r\n\r\n")
    # The gate notices closed connections one after the other, so there is soon room again.
    request = post("/v1/call/echo", b'{"args":["back"]}')
    assert any(peer.ask(request).endswith('{"result":"back"}') for _ in range(500))


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_WRITE], ids=str)
def test_memory_that_its_sender_can_change_is_refused(peer: Peer, seals: int) -> None:
    fd = os.memfd_create("attack", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 4096)
        if seals:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        assert "not sealed" in peer.ask(_with_memory(4096), (fd,))
    finally:
        os.close(fd)
    peer.check_others()


def test_descriptors_that_are_no_memory_or_too_short_are_refused(peer: Peer) -> None:
    sealed = os.memfd_create("attack", os.MFD_ALLOW_SEALING)
    null = os.open("/dev/null", os.O_RDWR)
    try:
        os.write(sealed, bytes(100))
        every = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, every)
        assert "past the end" in peer.ask(_with_memory(4096), (sealed,))
        assert "not a memfd" in peer.ask(_with_memory(4096), (null,))
        assert "descriptors came" in peer.ask(_with_memory(4096))
    finally:
        os.close(sealed)
        os.close(null)
    peer.check_others()


def _with_memory(size: int) -> bytes:
    value = {"$seer": "array", "buffer": 0, "dtype": "|u1", "shape": [size]}
    text = json.dumps({"args": [value]}).encode()
    headers = (FRAMES, f"seer-json: {len(text)}", "seer-memfds: 1", f"seer-buffers: m0+0+{size}")
    return post("/v1/call/total", text, *headers)


@pytest.mark.parametrize("dtype", ["O", "|O8", "V8", "<f8,O", "M8[ns", "<U999999999999"])
def test_arrays_of_objects_or_odd_types_are_refused(peer: Peer, dtype: str) -> None:
    value = {"$seer": "array", "buffer": 0, "dtype": dtype, "shape": [1]}
    text = json.dumps({"args": [value]}).encode()
    start = -(-len(text) // 64) * 64
    body = text.ljust(start) + bytes(8)
    headers = (FRAMES, f"seer-json: {len(text)}", "seer-buffers: i8")
    answer = peer.ask(post("/v1/call/total", body, *headers))
    assert answer.split(" ")[1] in ("400", "422"), answer
    peer.check_others()


@pytest.mark.parametrize("how", ["exit", "interrupt", "close"])
def test_a_function_cannot_end_its_callers_program(library: Library, how: str) -> None:
    tools: Any = library.connect()
    with closing(tools._gate), pytest.raises(Exception, match=how) as caught:
        tools.leave(how)
    assert not isinstance(caught.value, SystemExit | KeyboardInterrupt | GeneratorExit)


def test_results_that_nest_without_end_or_pretend_are_harmless(library: Library) -> None:
    tools: Any = library.connect()
    with closing(tools._gate):
        with pytest.raises(ResultError):
            tools.nest(5000)
        assert tools.pretend() == {"$seer": "array", "buffer": 0, "dtype": "O", "shape": [1]}
