"""A call with a known id is never executed again, whatever happened to its result."""

import contextlib
import select
import socket
import threading
import tracemalloc
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from seer.errors import CallLostError
from seer.rpc.client import Gate
from seer.rpc.interface._budget import Budget, Meter, Tally
from seer.rpc.interface._expose import Options
from seer.rpc.server._callers import KEEP_BYTES, KEEP_COUNT, Caller, Results
from seer.rpc.server._calls import Call
from seer.rpc.server._entries import Entry
from seer.rpc.server._execute import bind_fetch, fetch
from seer.rpc.server._replies import Reply
from seer.rpc.wire._http import parse_request
from tests.rpc.serving import Served, exchange, read_answer, serving, wait_until

SOURCE = """
    import time
    from collections.abc import Iterator
    import numpy as np

    ran = []

    @expose
    def executed() -> list[str]:
        return ran

    @expose
    def array(count: int) -> np.ndarray:
        ran.append("array")
        return np.zeros(count, dtype=np.uint8)

    @expose(idempotent=True)
    def again(count: int) -> np.ndarray:
        ran.append("again")
        return np.zeros(count, dtype=np.uint8)

    @expose
    def items(count: int, pause: float = 0.0) -> Iterator[int]:
        ran.append("items")
        for i in range(count):
            yield i
            time.sleep(pause)
"""

full = pytest.mark.full


@pytest.fixture(params=[1, 2], ids=["one process", "copies"])
def served(request: pytest.FixtureRequest) -> Generator[Served]:
    with serving(SOURCE, replicas=request.param) as served:
        yield served


def message(function: str, arguments: str, *, accept: str = "frames") -> bytes:
    head = f"POST /v1/call/{function} HTTP/1.1\r\nseer-call: once\r\nseer-accept: {accept}\r\n"
    return f"{head}content-length: {len(arguments)}\r\n\r\n{arguments}".encode()


@contextlib.contextmanager
def sent(served: Served, data: bytes) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(60)
        connected.connect(str(served.socket_path("a")))
        connected.sendall(data)
        yield connected


def read_all(connected: socket.socket, until: bytes) -> bytes:
    data = b""
    while not data.endswith(until):
        more = connected.recv(65536)
        assert more, data
        data += more
    return data


@full
@pytest.mark.parametrize("size", [4_000_000, KEEP_BYTES + 1000])
def test_a_result_that_is_not_kept_is_a_lost_call_and_not_made_again(
    served: Served, size: int
) -> None:
    # The first is dropped with the connection that owns its memory, the second is too large.
    accept = "shared" if size < KEEP_BYTES else "frames"
    call = message("array", f"[[{size}],{{}}]", accept=accept)
    with sent(served, call) as connected:
        assert connected.recv(12) == b"HTTP/1.1 200"
    gate = served.gate()

    def lost() -> bool:
        status, body = exchange(served.socket_path("a"), call)
        return status != 200 and b"CallLostError" in body

    wait_until(lost)
    assert gate.call("executed") == ["array"]


@full
def test_a_stream_that_was_read_is_not_streamed_again(served: Served) -> None:
    call = message("items", "[[3],{}]")
    with sent(served, call) as connected:
        assert b'{"item":2}' in read_all(connected, b"0\r\n\r\n")
    status, body = exchange(served.socket_path("a"), call)
    assert status != 200
    assert b"CallLostError" in body
    assert served.gate().call("executed") == ["items"]


@full
def test_a_stream_that_runs_is_read_by_one(served: Served) -> None:
    call = message("items", "[[100, 0.05],{}]")
    with sent(served, call) as connected:
        assert b'{"item":0}' in connected.recv(65536)
        status, body = exchange(served.socket_path("a"), call)
        assert (status, b"stream" in body) == (400, True)
        with sent(served, b"GET /v1/result/once HTTP/1.1\r\n\r\n") as other:
            assert read_answer(other)[0] == 400
        assert b"item" in connected.recv(65536)
    wait_until(lambda: served.calls() == 0)
    assert served.gate().call("executed") == ["items"]


class Cutter:
    """A proxy in front of a caller's socket, which cuts a connection when its next answer comes."""

    def __init__(self, served: Served) -> None:
        self.path = served.folder / "cut.sock"
        self._target = str(served.socket_path("a"))
        self.armed = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(connected,), daemon=True).start()

    def _pass_on(self, connected: socket.socket) -> None:
        with connected, socket.socket(socket.AF_UNIX) as gate:
            gate.connect(self._target)
            while True:
                for one in select.select([connected, gate], [], [])[0]:
                    data = one.recv(1 << 20)
                    if not data:
                        return
                    if one is gate and self.armed:
                        self.armed = False
                        return
                    (gate if one is connected else connected).sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@full
def test_a_connection_that_is_cut_costs_no_second_execution(served: Served) -> None:
    cutter = Cutter(served)
    with contextlib.closing(cutter), Gate("interface", f"frames:path:{cutter.path}") as gate:
        assert gate.call("executed") == []
        cutter.armed = True
        assert gate.call("array", (1000,)).nbytes == 1000
        assert gate.call("executed") == ["array"]
        cutter.armed = True
        with pytest.raises(CallLostError, match="was executed"):
            gate.call("array", (KEEP_BYTES + 1000,))
        assert gate.call("executed") == ["array"] * 2
        cutter.armed = True
        assert gate.call("again", (KEEP_BYTES + 1000,)).nbytes == KEEP_BYTES + 1000
        assert gate.call("executed")[2:] == ["again"] * 2


def test_an_id_is_known_at_every_moment_from_a_calls_beginning_on() -> None:
    cells = memoryview(bytearray(64)).cast("d")
    meter = Meter("anybody", Budget(), cells, 0)
    caller = Caller("a", 0, meter)
    left: list[bool] = []

    class Watched(dict[str, Call]):
        """The thread that reads requests looks here first, then at the results, without a lock."""

        def __delitem__(self, call: str) -> None:
            left.append(call in caller.results.known)
            super().__delitem__(call)

    caller.calls = Watched()
    head = b"POST /v1/call/f HTTP/1.1\r\nseer-call: once\r\ncontent-length: 0"
    entry = Entry("f", fetch, bind_fetch, Options(), meter)
    tally = Tally((meter, meter, meter), 1)
    connection: Any = SimpleNamespace(caller=caller)
    call = Call(connection, entry, parse_request(head, max_body=10), b"", tally, 0.0)
    caller.calls["once"] = call
    assert caller.answer(call, Reply(200, b"{}"), 1.0) == [connection]
    assert left == [True]
    assert "once" not in caller.calls


def test_ids_outlive_their_results() -> None:
    results = Results()
    half = Reply(200, b"x" * (KEEP_BYTES // 2))
    for i in range(3):
        results.add(f"large-{i}", "f", half, 0.0)
    assert results.get("large-0", 0.0) == ("f", None)
    assert results.get("large-2", 0.0) == ("f", half)
    results.drop("large-2")
    assert results.get("large-2", 0.0) == ("f", None)
    for i in range(100):
        results.add(f"small-{i}", "g", b'{"result":1}', 0.0)
    assert results.get("large-0", 0.0) == ("f", None)
    found = results.get("small-0", 0.0)
    assert found is not None
    assert found[1] is not None
    assert found[1].text == b'{"result":1}'


def test_ids_are_bounded_in_number_and_age() -> None:
    results = Results(seconds=600)
    for i in range(KEEP_COUNT + 10):
        results.add(f"{i}", "f", b"1", 0.0)
    assert len(results.known) == KEEP_COUNT
    assert results.get("9", 0.0) is None
    assert results.get("10", 0.0) is not None
    assert results.get("10", 601.0) is None
    assert not results.known


def test_ids_of_results_of_one_to_two_kilobytes_do_not_accumulate() -> None:
    results = Results()
    answer = bytes(1500)

    def add(start: int) -> None:
        for number in range(start, start + KEEP_COUNT):
            results.add(f"call-{number:056}", "f", answer, 0.0)

    add(0)
    tracemalloc.start()
    try:
        add(KEEP_COUNT)
        before = tracemalloc.get_traced_memory()[0]
        add(2 * KEEP_COUNT)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 500_000
    assert results.get(f"call-{3 * KEEP_COUNT - 1:056}", 0.0) is not None
