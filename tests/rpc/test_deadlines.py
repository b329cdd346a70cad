"""Deadlines and cancellation: the work stops, and the caller gets an error."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from seer.errors import (
    CallCancelledError,
    DeadlineExceededError,
    InterfaceDiedError,
    InterfaceRestartedError,
    StillRunningError,
)
from seer.rpc.client import Gate, deadline
from tests.rpc.serving import HOLD, SOON, Served, holding, http, read_answer, serving, wait_until

pytestmark = pytest.mark.full

SOURCE = (
    """
    import os
    import time
    from collections.abc import AsyncIterator

    log = []

    @expose
    def nap(seconds: float) -> float:
        log.append("start")
        try:
            time.sleep(seconds)
            log.append("end")
        finally:
            log.append("cleaned")
        return seconds

    @expose
    def spin(seconds: float) -> float:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                sum(range(100))
            except Exception:
                pass
        log.append("spun")
        return seconds

    @expose(timeout=0.2)
    def short(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @expose(max_concurrency=2)
    def threaded(seconds: float) -> float:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        return seconds

    @expose
    async def later(seconds: float) -> float:
        import asyncio
        try:
            await asyncio.sleep(seconds)
        finally:
            log.append("async cleaned")
        return seconds

    @expose(batch=8, batch_wait=0.01)
    def together(seconds: list[float]) -> list[float]:
        time.sleep(max(seconds))
        return seconds

    @expose(batch=8, batch_wait=0.01)
    def hold_together(releases: list[str]) -> list[str]:
        while not all(map(os.path.exists, releases)):
            time.sleep(0.005)
        return releases

    @expose
    async def dripping(seconds: float) -> AsyncIterator[int]:
        import asyncio
        for i in range(2):
            yield i
            await asyncio.sleep(seconds)

    @expose
    def endless():
        try:
            i = 0
            while True:
                yield i
                i += 1
        finally:
            log.append("generator closed")

    @expose(timeout=0.3)
    def stubborn_short(seconds: float) -> float:
        return stubborn("/nowhere")

    def stubborn(release: str) -> str:
        while not os.path.exists(release):
            try:
                time.sleep(0.01)
            except BaseException:
                pass
        return release

    expose(stubborn)

    @expose(max_concurrency=2)
    def stubborn_thread(release: str) -> str:
        return stubborn(release)

    @expose
    async def stubborn_task(release: str) -> str:
        import asyncio
        while not os.path.exists(release):
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
        return release

    @expose
    def deaf(release: str) -> str:
        # One long call of C code, which no exception gets into: four seconds on a fast machine.
        import hashlib
        return hashlib.pbkdf2_hmac("sha256", b"x", b"y", 24_000_000).hex()

    @expose(batch=8, batch_wait=0.01)
    def stubborn_together(releases: list[str]) -> list[str]:
        return [stubborn(release) for release in releases]

    @expose
    def stubborn_stream(release: str):
        yield 1
        stubborn(release)
        yield 2

    kept = []

    @expose
    def remember(value: int) -> int:
        kept.append(value)
        return len(kept)

    @expose(max_concurrency=2)
    def quick_thread() -> int:
        return 1

    @expose
    def seen() -> list:
        return log

    @expose
    def quick() -> int:
        return 1
"""
    + HOLD
)


@pytest.fixture
def served() -> Generator[Served]:
    with serving(SOURCE) as served:
        yield served


def stopped(call: Callable[[], object], *, within: float = SOON) -> DeadlineExceededError:
    begin = time.monotonic()
    with pytest.raises(DeadlineExceededError) as caught:
        call()
    assert time.monotonic() - begin < within
    return caught.value


@pytest.mark.parametrize("function", ["nap", "spin", "threaded", "later", "together"])
def test_a_call_is_stopped_at_its_deadline(served: Served, function: str) -> None:
    gate = served.gate()

    def call() -> None:
        with deadline(0.3):
            gate.call(function, (60.0,))

    error = stopped(call)
    assert function in str(error)
    assert isinstance(error, TimeoutError)
    begin = time.monotonic()
    assert gate.call("quick") == 1
    assert time.monotonic() - begin < SOON
    assert "spun" not in gate.call("seen")


def test_the_function_cleans_up_when_it_is_stopped(served: Served) -> None:
    gate = served.gate()
    with pytest.raises(DeadlineExceededError), deadline(1.0):
        gate.call("nap", (60.0,))
    assert gate.call("seen") == ["start", "cleaned"]


def test_a_functions_own_timeout_holds_for_a_caller_without_one(served: Served) -> None:
    gate = served.gate()
    stopped(lambda: gate.call("short", (60.0,)))


def test_a_deadline_passes_in_the_queue_without_executing(served: Served) -> None:
    gate = served.gate()

    def call() -> None:
        with deadline(1.0):
            gate.call("nap", (0.0,))

    with holding(served):
        assert "not executed" in str(stopped(call))
    assert gate.call("seen") == []


def test_a_function_that_does_not_stop_at_its_own_timeout_is_killed() -> None:
    with serving(SOURCE, grace=0.5) as served:
        gate = served.gate()
        error = stopped(lambda: gate.call("stubborn_short", (60.0,)))
        assert "its timeout of 0.3 s, which the interface's owner sets" in str(error)
        wait_until(lambda: served.control("GET", "/v1/health")["state"] == "dead")
        with pytest.raises(InterfaceDiedError, match="past its function's timeout"):
            gate.call("quick")


def test_the_owners_default_timeout_holds_for_functions_without_one() -> None:
    with serving(SOURCE, grace=0.4, call_timeout=0.3, restart="on-failure") as served:
        gate = served.gate()
        stopped(lambda: gate.call("stubborn", ("/nowhere",)))
        wait_until(lambda: served.control("GET", "/v1/health")["restarts"] == 1)
        with suppress(InterfaceRestartedError):
            gate.call("quick")
        assert gate.call("quick") == 1


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
@pytest.mark.parametrize("function", ["stubborn", "stubborn_thread", "stubborn_task", "deaf"])
def test_a_short_deadline_on_a_stubborn_call_costs_nobody_else_the_interface(
    replicas: int, function: str
) -> None:
    callers: dict[str, Any] = {"a": {}, "b": {}, "c": {}}
    with serving(SOURCE, grace=0.2, replicas=replicas, callers=callers) as served:
        # Each gets its home: with two copies, the third caller's is that of the first.
        gate, _, other = (served.gate(name) for name in callers)
        assert [served.gate(name).call("quick_thread") for name in callers] == [1, 1, 1]
        assert other.call("remember", (1,)) == 1
        pid = served.pid
        release = served.folder / "release"

        def call() -> None:
            with deadline(1.5):
                gate.call(function, (str(release),))

        said = str(stopped(call))
        time.sleep(0.6)  # three times the grace period that killed processes before
        assert (served.pid, other.call("quick_thread")) == (pid, 1)
        assert "has not stopped yet" in said
        # It has one detached call, so no other is started, and the error says why.
        with pytest.raises(StillRunningError, match=rf"earlier call of {function}\(\) was stopped"):
            gate.call("quick_thread")
        assert gate.health()["detached"] == 1
        seen = other.health()
        assert (seen["calls"], seen["detached"]) == (0, 0)
        release.touch()
        wait_until(lambda: gate.health()["detached"] == 0, timeout=2 * SOON)
        assert (other.call("remember", (2,)), gate.call("quick_thread")) == (2, 1)
        assert served.pid == pid
        used = gate.budget()["caller"]["used"]
        # The 0.5 s of the deadline and the 0.6 s that it continued.
        assert used["seconds"] > 1.05 and used["calls"] == 3


def test_a_caller_that_cancels_or_goes_away_keeps_paying_and_kills_nobody() -> None:
    with serving(SOURCE, grace=0.2) as served:
        release, pid = served.folder / "release", served.pid
        with called(served, "stubborn", [str(release)]) as connected:
            wait_until(lambda: served.calls() == 1)
            connected.close()
        time.sleep(0.6)
        assert served.pid == pid
        assert served.gate().health()["detached"] == 1
        with pytest.raises(StillRunningError):
            served.gate().call("quick_thread")
        before = served.gate().budget()["caller"]["used"]["seconds"]
        time.sleep(0.3)
        release.touch()
        wait_until(lambda: served.gate().health()["detached"] == 0)
        assert served.gate().budget()["caller"]["used"]["seconds"] > before + 0.29
        assert served.gate().call("quick") == 1


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_in_a_batch_one_callers_deadline_neither_kills_nor_blocks_anybody(order: str) -> None:
    with serving(SOURCE, grace=0.2, callers={"a": {}, "b": {}}) as served:
        release, pid = served.folder / "release", served.pid
        results: dict[str, object] = {}

        def wait(caller: str) -> None:
            gate = served.gate(caller)
            try:
                with deadline(2.0) if caller == "a" else nullcontext():
                    results[caller] = gate.call("stubborn_together", (str(release),))
            except (DeadlineExceededError, ConnectionError) as error:
                results[caller] = error

        threads = {caller: threading.Thread(target=wait, args=(caller,)) for caller in order}
        with holding(served) as waiting:
            for count, thread in enumerate(threads.values(), 1):
                thread.start()
                waiting(count)
        threads["a"].join(timeout=SOON)
        assert isinstance(results["a"], DeadlineExceededError)
        time.sleep(0.6)
        assert (served.pid, results.get("b")) == (pid, None)
        # The batch runs for the other caller, so nothing is held against this one.
        assert served.gate("a").call("quick_thread") == 1
        release.touch()
        threads["b"].join(timeout=SOON)
        assert results["b"] == str(release)
        assert served.gate("a").budget()["caller"]["used"]["seconds"] > 0.2


def test_a_stream_whose_generator_does_not_stop_ends_for_its_caller(served: Served) -> None:
    release = served.folder / "release"
    gate = served.gate()
    came: list[object] = []

    def read() -> None:
        with deadline(1.0):
            came.extend(gate.stream("stubborn_stream", (str(release),)))

    assert "has not stopped yet" in str(stopped(read))
    assert gate.health()["detached"] == 1
    release.touch()
    wait_until(lambda: gate.health()["detached"] == 0)
    assert gate.call("quick") == 1


def test_on_more_than_63_threads_the_end_of_one_call_does_not_clear_the_kill_mark_of_another() -> (
    None
):
    names = [f"wait_{number}" for number in range(3)]
    source = "import time\n" + "".join(
        f"""
@expose(max_concurrency=60, timeout={0.5 if number == 2 else 600.0})
def {name}(seconds: float) -> float:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0.01)
        except BaseException:
            pass
    return seconds
"""
        for number, name in enumerate(names)
    )
    with serving(source, grace=0.5) as served:
        gate = served.gate()
        # When all calls shared 63 marks, the ends of the short ones cleared the mark of the
        # stubborn one.
        threads = [
            threading.Thread(target=_call_quietly, args=(gate, "wait_0", 0.05)) for _ in range(60)
        ]
        victim = threading.Thread(target=_call_quietly, args=(gate, "wait_2", 60.0))
        victim.start()
        for thread in threads:
            thread.start()
        for thread in [*threads, victim]:
            thread.join(timeout=SOON)
        _call_quietly(gate, "wait_1", 0.01)
        wait_until(lambda: served.control("GET", "/v1/health")["state"] == "dead", timeout=SOON)


def _call_quietly(gate: Gate, function: str, seconds: float) -> None:
    with suppress(DeadlineExceededError, StillRunningError, ConnectionError):
        gate.call(function, (seconds,))


def test_a_client_that_goes_away_cancels_its_call(served: Served) -> None:
    gate = served.gate()
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(served.socket_path("a")))
        body = b"[[60.0],{}]"
        head = b"POST /v1/call/nap HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        connected.sendall(head + body)
        wait_until(lambda: served.calls() == 1)
    wait_until(lambda: served.calls() == 0, timeout=SOON)
    assert gate.call("seen") == ["start", "cleaned"]


def test_a_client_that_asked_for_it_may_come_back_for_its_result(served: Served) -> None:
    body = b"[[0.5],{}]"
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(served.socket_path("a")))
        head = b"POST /v1/call/nap HTTP/1.1\r\nseer-call: mine\r\nseer-linger: 10\r\n"
        connected.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        gate = served.gate()
        wait_until(lambda: served.calls() == 1)
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(30)
        connected.connect(str(served.socket_path("a")))
        connected.sendall(b"GET /v1/result/mine HTTP/1.1\r\n\r\n")
        assert read_answer(connected) == (200, b'{"result":0.5}')
    assert gate.call("seen") == ["start", "end", "cleaned"]


def test_a_lingering_call_is_stopped_when_nobody_comes_back(served: Served) -> None:
    body = b"[[60.0],{}]"
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(served.socket_path("a")))
        head = b"POST /v1/call/nap HTTP/1.1\r\nseer-call: mine\r\nseer-linger: 0.3\r\n"
        connected.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: served.calls() == 1)
    wait_until(lambda: served.calls() == 0, timeout=SOON)


def test_a_call_is_cancelled_by_its_id(served: Served) -> None:
    gate = served.gate()
    ids: list[str] = []
    errors: list[BaseException] = []

    class Noting(Gate):
        def new_id(self) -> str:
            ids.append(super().new_id())
            return ids[-1]

    noting = Noting("interface", f"path:{served.socket_path('a')}")

    def call() -> None:
        try:
            noting.call("nap", (60.0,))
        except CallCancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    wait_until(lambda: served.calls() == 1)
    assert gate.cancel(ids[0])
    thread.join(timeout=SOON)
    assert len(errors) == 1
    assert not gate.cancel(ids[0])
    noting.close()


async def test_cancelling_the_task_cancels_the_call(served: Served) -> None:
    gate = served.gate()
    task = asyncio.ensure_future(gate.acall("nap", (60.0,)))
    await asyncio.to_thread(wait_until, lambda: served.calls() == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_until(lambda: served.calls() == 0, timeout=SOON)


def test_a_stream_that_is_not_read_to_its_end_is_closed(served: Served) -> None:
    gate = served.gate()
    for item in gate.stream("endless"):
        if item == 100:
            break
    assert gate.call("seen") == ["generator closed"]


def test_one_call_of_a_batch_past_its_deadline_does_not_stop_the_others(served: Served) -> None:
    gate = served.gate()
    results: list[object] = []
    release = served.folder / "release"

    def wait_for_release(seconds: float) -> None:
        with deadline(seconds):
            results.append(gate.call("hold_together", (str(release),)))

    def be_stopped() -> None:
        results.append(stopped(lambda: wait_for_release(1.0)))

    threads = [
        threading.Thread(target=wait_for_release, args=(60.0,)),
        threading.Thread(target=be_stopped),
    ]
    with holding(served) as waiting:
        for thread in threads:
            thread.start()
        waiting(2)
    threads[1].join(timeout=SOON)
    assert [type(result) for result in results] == [DeadlineExceededError]
    release.touch()
    threads[0].join(timeout=SOON)
    assert results[1:] == [str(release)]


def test_long_calls_and_streams_get_signs_of_life(served: Served) -> None:
    with called(served, "nap") as call, called(served, "dripping") as stream:
        assert call.recv(100) == b"HTTP/1.1 102 Processing\r\n\r\n"
        assert read_answer(call)[0] == 200
        came = b""
        while not came.endswith(b"0\r\n\r\n"):
            came += stream.recv(1000)
    assert came.count(b"HTTP/1.1") == 1
    chunks = came.partition(b"\r\n\r\n")[2].split(b"\r\n")
    sizes, lines = [int(size, 16) for size in chunks[:-2:2]], chunks[1:-2:2]
    assert sizes == [*map(len, lines), 0]
    items = [line for line in lines if line != b"\n"]
    assert items == [b'{"item":0}\n', b'{"item":1}\n', b'{"end":null}\n']
    assert lines.count(b"\n") == 2


@contextmanager
def called(
    served: Served, function: str, args: Sequence[object] = (12.0,)
) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(30)
        connected.connect(str(served.socket_path("a")))
        body = json.dumps([list(args), {}]).encode()
        head = f"POST /v1/call/{function} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n"
        connected.sendall(head.encode() + body)
        yield connected


def test_an_inner_deadline_only_shortens_the_outer(served: Served) -> None:
    gate = served.gate()

    def call() -> None:
        with deadline(0.2), deadline(60):
            gate.call("nap", (60.0,))

    stopped(call)
    with deadline(60):
        assert gate.call("quick") == 1


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "3", None])
def test_a_deadline_that_is_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"deadline({seconds!r})")):
        deadline(seconds)


def test_a_result_can_be_fetched_again_by_its_id(served: Served) -> None:
    path = served.socket_path("a")
    body = b"[[],{}]"
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(30)
            connected.connect(str(path))
            head = b"POST /v1/call/seen HTTP/1.1\r\nseer-call: once\r\n"
            connected.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            assert read_answer(connected) == (200, b'{"result":[]}')
        served.gate().call("nap", (0.0,))
    assert http(path, "GET", "/v1/result/once") == []


IMPORTS = """
import os
import sys
import time


class Halt:
    def __init__(self, file):
        self.file = file

    def find_spec(self, name, path=None, target=None):
        if name == "numpy._core.printoptions":
            sys.meta_path.remove(self)
            open(self.file + ".begun", "w").close()
            while not os.path.exists(self.file):
                time.sleep(0.005)


def _mean(file):
    if file:
        sys.meta_path.insert(0, Halt(file))
    import numpy

    while file:
        time.sleep(0.005)
    return float(numpy.mean([1.0, 3.0]))


"""
IMPORTING = {
    "main thread": "@expose\ndef mean(file: str) -> float:\n    return _mean(file)\n",
    "threads": (
        "@expose(max_concurrency=2)\ndef mean(file: str) -> float:\n    return _mean(file)\n"
    ),
    "batches": (
        "@expose(batch=2)\ndef mean(file: list[str]) -> list[float]:\n"
        "    return [_mean(one) for one in file]\n"
    ),
}


@pytest.mark.parametrize("lane", IMPORTING)
def test_a_caller_that_stops_waiting_during_an_import_does_not_break_the_package(
    tmp_path: Path, lane: str
) -> None:
    file = tmp_path / "go"
    with serving(IMPORTS + IMPORTING[lane], callers={"a": {}, "b": {}}) as served:
        with pytest.raises(DeadlineExceededError, match="has not stopped yet"), deadline(3.0):
            served.gate("a").call("mean", (str(file),))
        assert (tmp_path / "go.begun").exists()
        file.touch()
        # It is stopped after the import; otherwise it would run forever.
        wait_until(lambda: http(served.socket_path("a"), "GET", "/v1/health")["detached"] == 0)
        assert served.gate("b").call("mean", ("",)) == 2.0
