"""The memory that one caller can make the interface process use is bounded."""

import contextlib
import fcntl
import os
import re
import select
import socket
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import CallCancelledError, GateBusyError, HandleError, ProtocolError
from seer.rpc.client import Gate, _requests
from seer.rpc.wire._protocol import Piece
from tests.rpc.serving import HOLD, SOON, Served, holding, serving, wait_until

pytestmark = pytest.mark.full

MIB = 1 << 20
LIMIT = 64 * MIB
SEALS = 1 | 2 | 4 | 8
SOURCE = """
    import numpy as np
    from seer.rpc import Handle

    shared = np.zeros(30 << 20, "u1")

    class Kept:
        def __init__(self, value):
            self.value = value

    @expose
    def make(mib: int, how: str = "array") -> Handle:
        value = np.ones(mib << 20, "u1")
        if how == "nested":
            return {"parts": [value, (1, 2)]}
        if how == "object":
            return Kept(value)
        if how == "view":
            return value[:1]
        if how == "bytes":
            return [bytes(mib << 20)]
        return value

    @expose
    def views(count: int) -> list[Handle]:
        return [Handle(shared[i:]) for i in range(count)]

    @expose
    def total(values: np.ndarray) -> float:
        return float(values.sum())

    @expose
    def length(text: str) -> int:
        return len(text)

    @expose
    def array(mib: int) -> np.ndarray:
        return np.ones(mib << 20, "u1")

    @expose
    def kib(count: int) -> np.ndarray:
        return np.ones(count << 10, "u1")

    @expose
    def resident() -> int:
        return int(open("/proc/self/statm").read().split()[1]) * 4096
"""


@pytest.fixture
def served() -> Generator[Served]:
    with serving(SOURCE, caller_memory=LIMIT) as served:
        yield served


def memfd(size: int, pages: range) -> int:
    """A sealed memfd that has memory only where `pages` begin."""
    fd = os.memfd_create("attack", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    for page in pages:
        os.pwrite(fd, bytes(4096), page)
    fcntl.fcntl(fd, 1033, SEALS)
    return fd


@pytest.mark.parametrize(
    "pages",
    [
        range(0),
        range(1),
        range(0, 32 * MIB, 8192),
        range(0, 32 * MIB - 4096, 4096),
    ],
    ids=["empty", "one page", "every second page", "all but a page"],
)
def test_a_sparse_memfd_is_refused_and_takes_no_memory(
    served: Served, pages: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = served.gate()
    assert gate.call("total", (np.ones(MIB),)) == MIB
    before = gate.call("resident")

    def sparse(_buffers: list[Any]) -> tuple[int, list[Piece]]:
        return memfd(32 * MIB, pages), [Piece("m", 0, 0, 8 * MIB)]

    monkeypatch.setattr(_requests, "sealed_memfd", sparse)
    with pytest.raises(ProtocolError, match="holes are not accepted"):
        gate.call("total", (np.ones(MIB),))
    monkeypatch.undo()
    assert gate.call("total", (np.ones(MIB),)) == MIB
    assert gate.call("resident") < before + 16 * MIB


def test_buffers_that_overlap_cannot_multiply_what_was_sent(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = served.gate()

    def overlapping(buffers: list[Any]) -> tuple[int, list[Piece]]:
        size = memoryview(buffers[0]).nbytes
        return memfd(size, range(0, size, 4096)), [Piece("m", 0, 0, size) for _ in buffers]

    monkeypatch.setattr(_requests, "sealed_memfd", overlapping)
    with pytest.raises(ProtocolError, match="more bytes than the memfd"):
        gate.call("total", (np.ones(MIB), np.ones(MIB)))


@pytest.mark.parametrize("how", ["array", "nested", "object", "view", "bytes"])
def test_handles_are_bounded_by_their_bytes(served: Served, how: str) -> None:
    gate = served.gate()
    before = gate.call("resident")
    kept: list[Any] = []
    with pytest.raises(HandleError, match="caller_memory="):
        for _ in range(20):
            kept.append(gate.call("make", (10, how)))
    assert len(kept) == 6
    assert gate.call("resident") < before + LIMIT + 32 * MIB
    del kept[:3]
    assert gate.call("make", (20, how)) is not None
    # Another caller has its own limit.
    message: dict[str, Any] = {"name": "b", "socket": str(served.socket_path("b")), "budget": {}}
    served.control("POST", "/v1/callers", message)
    assert served.gate("b").call("make", (50, how)) is not None


def test_handles_that_share_memory_are_counted_once(served: Served) -> None:
    gate = served.gate()
    handles = gate.call("views", (20,))
    more = gate.call("make", (30,))
    with pytest.raises(HandleError):
        gate.call("make", (10,))
    del handles[1:]
    with pytest.raises(HandleError):
        gate.call("make", (10,))
    handles.clear()
    assert gate.call("make", (20,)) is not None
    assert more is not None


def test_handles_and_arguments_are_bounded_together(served: Served) -> None:
    gate = served.gate()
    kept = gate.call("make", (40,))
    with pytest.raises(ProtocolError, match="this caller may hold"):
        gate.call("length", ("x" * (32 * MIB),))
    with pytest.raises(ProtocolError, match="are accepted"):
        gate.call("total", (np.ones(4 * MIB),))
    kept.free()
    assert gate.call("length", ("x" * (32 * MIB),)) == 32 * MIB
    assert gate.call("total", (np.ones(4 * MIB),)) == 4 * MIB


def test_a_result_beyond_the_allowance_comes_over_the_socket(served: Served) -> None:
    gate = served.gate()
    assert gate.call("array", (80,)).sum() == 80 * MIB
    shared = Path(f"/proc/{served.pid}/maps").read_text()
    assert "seer-slot" not in shared


def receive_arrays(served: Served, sizes: list[int], *, release: bool) -> list[int]:
    """Call `array` over one connection for each size, and keep all descriptors that come."""
    found: list[int] = []
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(SOON)
        connected.connect(str(served.socket_path("a")))
        known: list[int] = []
        for size in sizes:
            body = b"[[%d],{}]" % size
            freed = b"seer-release: %s\r\n" % b",".join(b"%d" % n for n in known)
            head = b"POST /v1/call/array HTTP/1.1\r\nseer-accept: shared\r\n%s" % (
                freed if release and known else b""
            )
            connected.sendall(head + b"content-length: %d\r\n\r\n%s" % (len(body), body))
            data, fds, _, _ = socket.recv_fds(connected, 65536, 8)
            answer = data.partition(b"\r\n\r\n")[0].decode()
            length = int(answer.rpartition("content-length: ")[2].partition("\r\n")[0])
            left = length - len(data.partition(b"\r\n\r\n")[2])
            while left > 0:
                left -= len(connected.recv(min(left, 1 << 20)))
            known = [int(n) for n in re.findall(r"seer-buffers: s(\d+)\+", answer)]
            found += fds
    return found


@pytest.mark.parametrize("release", [False, True], ids=["kept", "released, which is a lie"])
def test_arrays_that_a_caller_keeps_after_it_has_gone_still_count(
    served: Served, release: bool
) -> None:
    gate = served.gate()
    sizes = [5, 11, 23]
    kept: list[int] = []
    for _ in range(6):
        # A lying caller says that it has released the slots that it keeps, and asks for another
        # size each time.
        kept += receive_arrays(served, sizes, release=release)
    held = sum(os.fstat(fd).st_size for fd in kept)
    try:
        assert 0 < held <= LIMIT
        assert gate.call("array", (40,)).sum() == 40 * MIB, "the rest comes over the socket"
        assert len(receive_arrays(served, [40], release=False)) == 0
    finally:
        for fd in kept:
            os.close(fd)
    again = receive_arrays(served, [40], release=False)
    assert len(again) == 1, "what the caller has given up is free again"
    os.close(again[0])


def slots_of(served: Served) -> int:
    """How many slots the interface's process has open."""
    count = 0
    for fd in Path(f"/proc/{served.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += "seer-slot" in str(fd.readlink())
    return count


def test_arrays_that_a_caller_let_go_of_late_go_with_its_next_connection(served: Served) -> None:
    for _ in range(8):
        # The gate drops its slots while the caller still holds them.
        kept = receive_arrays(served, [2, 5], release=False)
        wait_until(lambda: "seer-slot" not in Path(f"/proc/{served.pid}/maps").read_text())
        for fd in kept:
            os.close(fd)
    wait_until(lambda: slots_of(served) <= 2)


def test_arrays_that_are_held_when_their_caller_is_removed_go_with_it(served: Served) -> None:
    kept = receive_arrays(served, [2, 5], release=False)
    try:
        assert len(kept) == 2
        served.control("POST", "/v1/remove/a")
        wait_until(lambda: slots_of(served) == 0)
    finally:
        for fd in kept:
            os.close(fd)


@pytest.mark.parametrize("replicas", [1, 2])
def test_arrays_of_changing_sizes_go_on_in_shared_memory(replicas: int) -> None:
    with serving(SOURCE, caller_memory=LIMIT, replicas=replicas) as served:
        gate = served.gate()
        for mib in (5, 40, 12, 30, 50, 8, 60, 20) * 3:
            found = gate.call("array", (mib,))
            assert found.sum() == mib * MIB
            del found
        maps = Path("/proc/self/maps").read_text().splitlines()
        mapped = sum(
            int(end, 16) - int(start, 16)
            for line in maps
            if "seer-slot" in line
            for start, end in [line.split()[0].split("-")]
        )
        assert mapped <= LIMIT, "the caller has not unmapped what the gate gave up"


def test_small_arrays_take_no_more_descriptors_than_one_caller_may_have(served: Served) -> None:
    gate = served.gate()
    kept = [gate.call("kib", (300,)) for _ in range(400)]
    assert all(one.sum() == 300 << 10 for one in kept)
    assert 100 < slots_of(served) <= 260


READING = (
    """
    from collections.abc import AsyncIterator, Iterator

    @expose
    def small(x: int) -> int:
        return x + 1

    @expose
    def blob(mib: int) -> bytes:
        return b"x" * (mib << 20)

    @expose
    def stream(mib: int) -> Iterator[bytes]:
        for _ in range(mib):
            yield bytes(1 << 20)

    @expose(max_concurrency=2)
    def threads(mib: int) -> Iterator[bytes]:
        for _ in range(mib):
            yield bytes(1 << 20)

    @expose(max_concurrency=2)
    async def tasks(mib: int) -> AsyncIterator[bytes]:
        for _ in range(mib):
            yield bytes(1 << 20)
"""
    + HOLD
)


def request(function: str, argument: int) -> bytes:
    body = b'{"args": [%d]}' % argument
    head = f"POST /v1/call/{function} HTTP/1.1\r\nseer-accept: frames\r\n".encode()
    return head + b"content-length: %d\r\n\r\n%s" % (len(body), body)


@contextlib.contextmanager
def reading_slowly(served: Served, function: str, mib: int) -> Generator[list[bytes]]:
    """A stream of caller `a` that is read at 100 kB/s; gives what was read."""
    found: list[bytes] = []
    stop = threading.Event()
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(str(served.socket_path("a")))
    connected.sendall(request(function, mib))
    found.append(connected.recv(10_000))

    def read() -> None:
        with contextlib.suppress(OSError):
            while not stop.wait(0.1):
                found.append(connected.recv(10_000))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
        connected.close()


@pytest.mark.parametrize(
    ("function", "replicas"), [("stream", 1), ("stream", 2), ("threads", 1), ("tasks", 1)]
)
def test_a_stream_that_is_read_slowly_keeps_no_other_caller_waiting(
    function: str, replicas: int
) -> None:
    callers: dict[str, Any] = {"a": {}, "b": {}, "c": {}}
    with serving(READING, callers=callers, replicas=replicas) as served:
        gates = {name: served.gate(name) for name in callers}
        for gate in gates.values():
            # Each gets its home: with two copies, the third caller's is that of the first.
            assert gate.call("small", (1,)) == 2
        streams = 1 if function == "stream" else 2
        with contextlib.ExitStack() as stack:
            for _ in range(streams):
                stack.enter_context(reading_slowly(served, function, 100_000))
            begin = time.monotonic()
            if function == "stream":
                assert gates["c"].call("small", (1,)) == 2
            else:
                assert len(list(gates["c"].stream(function, (1,)))) == 1
            assert time.monotonic() - begin < SOON


def test_a_stream_is_whole_for_a_slow_reader_where_it_fits_ahead_of_it() -> None:
    with serving(READING, callers={"a": {}, "b": {}}) as served:
        other = served.gate("b")
        stream = served.gate("a").stream("stream", (30,))
        assert len(next(stream)) == MIB
        # The generator has waited for its reader until now, and runs ahead because of this call.
        assert other.call("small", (1,)) == 2
        assert len(list(stream)) == 29


def test_a_stream_that_is_cut_off_says_that_it_was_read_too_slowly() -> None:
    with serving(READING, callers={"a": {}, "b": {}}) as served:
        stream = served.gate("a").stream("stream", (100_000,))
        assert len(next(stream)) == MIB
        assert served.gate("b").call("small", (1,)) == 2
        with pytest.raises(CallCancelledError, match="too slowly while calls of others wait"):
            for item in stream:
                assert len(item) == MIB


@pytest.mark.parametrize("replicas", [1, 2])
def test_unread_answers_are_bounded_also_of_calls_that_waited_together(replicas: int) -> None:
    most = LIMIT // 4
    with serving(READING, caller_memory=LIMIT, replicas=replicas) as served:
        gate = served.gate()
        gate.call("small", (1,))
        pid = served.pid

        def resident() -> int:
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096

        before = resident()
        with contextlib.ExitStack() as stack:
            connections: list[socket.socket] = []
            for _ in range(60):
                connected = stack.enter_context(socket.socket(socket.AF_UNIX))
                connected.connect(str(served.socket_path("a")))
                connections.append(connected)
            with holding(served) as waiting:
                for connected in connections:
                    connected.sendall(request("blob", 16))
                waiting(len(connections))
            # Every connection has an answer, or its beginning.
            for connected in connections:
                assert select.select([connected], [], [], SOON)[0]
            assert resident() < before + most + 128 * MIB
            with pytest.raises(GateBusyError, match="unread answers"):
                gate.call("small", (1,))
        wait_until(lambda: answers(gate))


def answers(gate: Gate) -> bool:
    """Whether calls work again, because the unread answers are gone."""
    try:
        return gate.call("small", (1,)) == 2
    except GateBusyError:
        return False
