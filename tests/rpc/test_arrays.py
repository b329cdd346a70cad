"""Arrays through the gate: shared memory that is private to its caller and reused."""

import array
import fcntl
import gc
import json
import mmap
import os
import socket
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from seer.errors import ProtocolError
from seer.rpc.client._mappings import sealed_memfd
from seer.rpc.wire._memory import Allowance, SlotPool, Spares, map_sealed
from tests.rpc.serving import SOON, Served, read_answer, serving, wait_until

pytestmark = pytest.mark.full

SOURCE = """
    import os
    import numpy as np

    base = np.arange(4_000_000, dtype=np.float32)

    @expose
    def big(stamp: int) -> np.ndarray:
        base[0] = stamp
        return base

    @expose
    def several() -> dict:
        other = base[1_000_000:2_000_000]
        return {"small": np.arange(3), "big": base[:1_000_000], "other": [other]}

    @expose
    def total(values: np.ndarray) -> float:
        return float(values.sum())

    @expose
    def spoil(values: np.ndarray) -> float:
        values[:] = 0
        return float(values.sum())

    @expose
    def parts(n: int):
        for i in range(n):
            yield np.full(100_000, i)

    @expose
    def memory() -> int:
        return len(os.listdir("/proc/self/fd"))
"""


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "copies"])
def served(request: pytest.FixtureRequest) -> Generator[Served]:
    callers: dict[str, Any] = {"a": {}, "b": {}, "c": {}}
    with serving(SOURCE, callers=callers, replicas=request.param) as served:
        yield served


def test_a_large_array_arrives_equal_and_writable(served: Served) -> None:
    found = served.gate().call("big", (7,))
    assert found.dtype == np.float32
    assert (found[0], found[-1], len(found)) == (7, 3_999_999, 4_000_000)
    found[1] = 5
    found *= 2
    assert found[1] == 10


def test_what_a_caller_writes_to_its_array_is_not_in_the_next(served: Served) -> None:
    gate = served.gate()
    for stamp in range(6):
        found = gate.call("big", (stamp,))
        assert found[0] == stamp
        assert np.array_equal(found[1:], np.arange(1, 4_000_000, dtype=np.float32))
        found[:] = -1
        del found
        gc.collect()


def test_kept_arrays_do_not_change_when_more_come(served: Served) -> None:
    gate = served.gate()
    kept = [gate.call("big", (stamp,)) for stamp in range(5)]
    assert [int(found[0]) for found in kept] == [0, 1, 2, 3, 4]


def test_a_view_keeps_its_memory_after_the_array_is_dropped(served: Served) -> None:
    gate = served.gate()
    view = gate.call("big", (11,))[:10]
    gc.collect()
    for stamp in range(3):
        gate.call("big", (stamp,))
    assert view[0] == 11


def test_dropped_memory_is_used_again(served: Served) -> None:
    gate = served.gate("b")
    before = gate.call("memory")
    for stamp in range(40):
        gate.call("big", (stamp,))
        gc.collect()
    # Slots are descriptors: a few that are reused, and spare ones that may be made a moment later.
    assert gate.call("memory") < before + 10


def test_arrays_of_all_sizes_in_one_result(served: Served) -> None:
    found = served.gate().call("several")
    assert found["small"].tolist() == [0, 1, 2]
    assert found["big"][999_999] == 999_999
    assert found["other"][0][0] == 1_000_000


@pytest.mark.parametrize("size", [0, 1, 1000, 200_000, 3_000_000])
def test_arguments_of_any_size_arrive(served: Served, size: int) -> None:
    values = np.arange(size, dtype=np.float64)
    assert served.gate().call("total", (values,)) == values.sum()


def test_a_function_that_changes_its_argument_changes_its_own_copy(served: Served) -> None:
    values = np.ones(1_000_000)
    assert served.gate().call("spoil", (values,)) == 0
    assert values.sum() == 1_000_000


def test_without_shared_memory_the_bytes_go_over_the_socket(served: Served) -> None:
    gate = served.gate(kind="frames:path")
    assert gate.call("big", (3,))[0] == 3
    assert gate.call("total", (np.ones(1_000_000),)) == 1_000_000


def test_arrays_are_streamed(served: Served) -> None:
    found = list(served.gate().stream("parts", (5,)))
    assert [int(part[0]) for part in found] == [0, 1, 2, 3, 4]
    assert all(part.shape == (100_000,) for part in found)


async def test_arrays_arrive_through_the_awaitable_form(served: Served) -> None:
    gate = served.gate()
    assert (await gate.acall("big", (4,)))[0] == 4
    assert await gate.acall("total", (np.ones(2_000_000),)) == 2_000_000


def test_plain_json_gets_lists_for_small_arrays_only(served: Served) -> None:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(20)
        connected.connect(str(served.socket_path("a")))
        body = b"[[1],{}]"
        head = b"POST /v1/call/big HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        connected.sendall(head + body)
        status, text = read_answer(connected)
    assert status == 500
    assert "frames" in json.loads(text)["error"]["message"]


def send_memfd(served: Served, fd: int, *, size: int, headers: bytes = b"") -> tuple[int, Any]:
    text = json.dumps(
        [[{"$seer": "array", "buffer": 0, "dtype": "<f8", "shape": [size // 8]}], {}]
    ).encode()
    head = (
        b"POST /v1/call/total HTTP/1.1\r\ncontent-type: application/x-seer-frames\r\n"
        b"seer-accept: shared\r\nseer-json: %d\r\nseer-memfds: 1\r\nseer-buffers: m0+0+%d\r\n%s"
        b"content-length: %d\r\n\r\n"
    ) % (len(text), size, headers, len(text))
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(20)
        connected.connect(str(served.socket_path("a")))
        rights = array.array("i", [fd])
        connected.sendmsg([head + text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        status, answer = read_answer(connected)
        return status, json.loads(answer)


def full_memfd() -> int:
    made = sealed_memfd([np.ones(1000)])
    assert made is not None
    return made[0]


def test_a_sealed_memfd_is_taken(served: Served) -> None:
    fd = full_memfd()
    try:
        assert send_memfd(served, fd, size=8000) == (200, {"result": 1000.0})
    finally:
        os.close(fd)


@pytest.mark.parametrize("seals", [0, 2 | 4, 8 | 2, 8 | 4])
def test_a_memfd_that_its_sender_could_change_is_refused(served: Served, seals: int) -> None:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(fd, bytes(8000))
    fcntl.fcntl(fd, 1033, seals)
    try:
        status, answer = send_memfd(served, fd, size=8000)
    finally:
        os.close(fd)
    assert status == 400
    assert "sealed" in answer["error"]["message"]


def test_a_file_instead_of_a_memfd_is_refused(served: Served) -> None:
    with served.file.open("rb") as file:
        status, answer = send_memfd(served, file.fileno(), size=8)
    assert (status, answer["error"]["type"]) == (400, "ProtocolError")


def test_a_buffer_past_the_end_of_its_memfd_is_refused(served: Served) -> None:
    fd = full_memfd()
    try:
        status, answer = send_memfd(served, fd, size=80_000)
    finally:
        os.close(fd)
    assert status == 400
    assert "past the end" in answer["error"]["message"]


def test_descriptors_that_were_not_announced_are_refused(served: Served) -> None:
    watching = served.gate("c")
    before = watching.call("memory")
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(20)
            connected.connect(str(served.socket_path("a")))
            rights = array.array("i", [0, 1, 2])
            message = b"GET /v1/health HTTP/1.1\r\n\r\n"
            connected.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            assert read_answer(connected)[0] == 400
    # The server closes a connection a moment after its caller does.
    wait_until(lambda: watching.call("memory") <= before + 1)


def receive_slot(served: Served, caller: str, call: bytes) -> tuple[socket.socket, int, bytes]:
    """Call `big` by hand; the open connection, the slot's descriptor and the response's head."""
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(20)
    connected.connect(str(served.socket_path(caller)))
    body = b"[[1],{}]"
    head = b"POST /v1/call/big HTTP/1.1\r\nseer-accept: shared\r\nseer-call: %s\r\n" % call
    connected.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    data, ancillary, _, _ = connected.recvmsg(65536, socket.CMSG_SPACE(16))
    numbers = array.array("i")
    numbers.frombytes(ancillary[0][2])
    return connected, numbers[0], data


def test_a_caller_cannot_write_to_a_slot_or_resize_it(served: Served) -> None:
    connected, fd, _ = receive_slot(served, "a", b"written")
    with connected:
        size = os.fstat(fd).st_size
        # The received descriptor is read-only. If it can be opened again for writing, the seals
        # hold.
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        for one in (fd, again):
            with pytest.raises(PermissionError):
                mmap.mmap(one, size)
            with pytest.raises(OSError, match="not permitted|Bad file descriptor"):
                os.pwrite(one, b"x", 0)
            for other in (0, size * 2):
                with pytest.raises(OSError, match="not permitted|Invalid argument"):
                    os.ftruncate(one, other)
            with pytest.raises(PermissionError):
                fcntl.fcntl(one, 1033, 8)
            os.close(one)


def test_a_caller_cannot_get_or_release_what_is_anothers(served: Served) -> None:
    connected, fd, head = receive_slot(served, "a", b"mine")
    os.close(fd)
    with connected:
        assert b"seer-slots: 0=" in head
        for caller in ("a", "b"):
            with socket.socket(socket.AF_UNIX) as other:
                other.settimeout(20)
                other.connect(str(served.socket_path(caller)))
                other.sendall(b"GET /v1/health HTTP/1.1\r\nseer-release: 0\r\n\r\n")
                assert read_answer(other)[0] == 400
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(20)
            other.connect(str(served.socket_path("b")))
            other.sendall(b"GET /v1/result/mine HTTP/1.1\r\nseer-accept: shared\r\n\r\n")
            assert read_answer(other)[0] == 404


def test_a_result_is_fetched_again_over_another_connection(served: Served) -> None:
    connected, fd, _ = receive_slot(served, "a", b"again")
    os.close(fd)
    with connected, socket.socket(socket.AF_UNIX) as other:
        other.settimeout(20)
        other.connect(str(served.socket_path("a")))
        other.sendall(b"GET /v1/result/again HTTP/1.1\r\nseer-accept: frames\r\n\r\n")
        status, body = read_answer(other)
        assert status == 200
        assert np.frombuffer(body[-4:], "<f4")[0] == 3_999_999


def test_a_pool_is_bounded_and_says_so_by_none() -> None:
    pool = SlotPool(Allowance(1 << 20), Spares())
    first = pool.take(512 * 1024)
    assert first is not None
    assert pool.take(1 << 20) is None
    pool.let_go(first)
    pool.release(first.index)
    again = pool.take(500 * 1024)
    assert again is first
    pool.close()


def test_a_slot_stays_valid_for_those_who_fill_it_when_its_connection_closes() -> None:
    allowance = Allowance()
    pool = SlotPool(allowance, Spares())
    slot = pool.take(1 << 20)
    assert slot is not None
    pool.close()
    slot.view[:3] = b"abc"
    pool.hold(slot)
    pool.let_go(slot)
    assert (bytes(slot.view[:3]), allowance.used > 0) == (b"abc", True)
    pool.let_go(slot)
    assert allowance.used == 0


def test_a_slot_is_not_used_again_while_somebody_reads_it() -> None:
    pool = SlotPool(Allowance(), Spares())
    slot = pool.take(100_000)
    assert slot is not None
    pool.hold(slot)
    assert pool.release(slot.index)
    other = pool.take(100_000)
    assert other is not slot
    pool.let_go(slot)
    assert pool.take(100_000) is not None
    pool.close()


def test_map_sealed_refuses_a_pipe() -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(ProtocolError, match="not a memfd"):
            map_sealed(read, 1000)
    finally:
        os.close(read)
        os.close(write)


def test_an_answer_that_cannot_be_copied_for_another_connection_ends_that_connection() -> None:
    source = """
        import os, time
        import numpy as np
        from seer.rpc.server._replies import Reply

        def out_of_memory(reply):
            raise MemoryError

        Reply.unshared = out_of_memory

        @expose
        def big(release: str) -> np.ndarray:
            while not os.path.exists(release):
                time.sleep(0.001)
            return np.zeros(4_000_000, dtype=np.uint8)
    """
    with (
        serving(source) as served,
        socket.socket(socket.AF_UNIX) as first,
        socket.socket(socket.AF_UNIX) as other,
    ):
        release = served.folder / "release"
        body = json.dumps([[str(release)], {}]).encode()
        head = b"POST /v1/call/big HTTP/1.1\r\nseer-accept: shared\r\nseer-call: mine\r\n"
        for connected in (first, other):
            connected.settimeout(SOON)
            connected.connect(str(served.socket_path("a")))
        first.sendall(head + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        wait_until(lambda: served.calls() == 1)
        other.sendall(b"GET /v1/result/mine HTTP/1.1\r\nseer-accept: frames\r\n\r\n")
        assert served.gate().health()["calls"] == 1
        release.touch()
        assert first.recv(12) == b"HTTP/1.1 200"
        assert other.recv(12) == b""
        assert served.gate().health()["calls"] == 0
