"""Deadlines and cancelling: past them work stops for real, and the caller is told."""

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from seer.errors import (
    CallCancelledError,
    CallLostError,
    DeadlineExceededError,
    InterfaceDiedError,
    InterfaceRestartedError,
)
from seer.rpc.client import Gate, deadline
from seer.rpc.client._streams import ChunkReader
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

    @expose
    def stubborn(seconds: float) -> float:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                time.sleep(seconds)
            except BaseException:
                pass
        return seconds

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
    with pytest.raises(DeadlineExceededError), deadline(0.2):
        gate.call("nap", (60.0,))
    assert gate.call("seen") == ["start", "cleaned"]


def test_a_functions_own_timeout_holds_for_a_caller_without_one(served: Served) -> None:
    gate = served.gate()
    stopped(lambda: gate.call("short", (60.0,)))


def test_a_deadline_passes_in_the_queue_without_executing(served: Served) -> None:
    gate = served.gate()

    def call() -> None:
        with deadline(0.2):
            gate.call("nap", (0.0,))

    with holding(served):
        assert "not executed" in str(stopped(call))
    assert gate.call("seen") == []


def test_a_function_that_does_not_stop_is_killed_after_the_grace_period() -> None:
    with serving(SOURCE, grace=0.5) as served:
        gate = served.gate()
        begin = time.monotonic()
        with pytest.raises((DeadlineExceededError, CallLostError)) as caught, deadline(0.3):
            gate.call("stubborn", (60.0,))
        assert time.monotonic() - begin < SOON
        assert "deadline" in str(caught.value)
        with pytest.raises(InterfaceDiedError, match="deadline"):
            gate.call("quick")


def test_it_is_started_again_where_that_was_asked_for() -> None:
    with serving(SOURCE, grace=0.3, restart="on-failure") as served:
        gate = served.gate()
        with pytest.raises((DeadlineExceededError, CallLostError)), deadline(0.2):
            gate.call("stubborn", (60.0,))
        with suppress(InterfaceRestartedError):
            gate.call("quick")
        assert gate.call("quick") == 1


def test_a_client_that_goes_away_cancels_its_call(served: Served) -> None:
    gate = served.gate()
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(served.socket_path("a")))
        body = b"[[60.0],{}]"
        head = b"POST /v1/call/nap HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        connected.sendall(head + body)
        wait_until(lambda: gate.health()["calls"] == 1)
    wait_until(lambda: gate.health()["calls"] == 0, timeout=SOON)
    assert gate.call("seen") == ["start", "cleaned"]


def test_a_client_that_asked_for_it_may_come_back_for_its_result(served: Served) -> None:
    body = b"[[0.5],{}]"
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(served.socket_path("a")))
        head = b"POST /v1/call/nap HTTP/1.1\r\nseer-call: mine\r\nseer-linger: 10\r\n"
        connected.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        gate = served.gate()
        wait_until(lambda: gate.health()["calls"] == 1)
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(30)
        connected.connect(str(served.socket_path("a")))
        connected.sendall(b"GET /v1/result/mine HTTP/1.1\r\n\r\n")
        assert read_answer(connected) == (200, b'{"result":0.5}')
    assert gate.call("seen") == ["start", "end", "cleaned"]


def test_a_lingering_call_is_stopped_when_nobody_comes_back(served: Served) -> None:
    body = b"[[60.0],{}]"
    gate = served.gate()
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(served.socket_path("a")))
        head = b"POST /v1/call/nap HTTP/1.1\r\nseer-call: mine\r\nseer-linger: 0.3\r\n"
        connected.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: gate.health()["calls"] == 1)
    wait_until(lambda: gate.health()["calls"] == 0, timeout=SOON)


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
    wait_until(lambda: gate.health()["calls"] == 1)
    assert gate.cancel(ids[0])
    thread.join(timeout=SOON)
    assert len(errors) == 1
    assert not gate.cancel(ids[0])
    noting.close()


async def test_cancelling_the_task_cancels_the_call(served: Served) -> None:
    gate = served.gate()
    task = asyncio.ensure_future(gate.acall("nap", (60.0,)))
    await asyncio.to_thread(wait_until, lambda: gate.health()["calls"] == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_until(lambda: gate.health()["calls"] == 0, timeout=SOON)


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
    chunks = ChunkReader().feed(came.partition(b"\r\n\r\n")[2])
    assert chunks == [b'{"item":0}\n', b'{"item":1}\n', b'{"end":null}\n', None]
    assert came.count(b"\r\n1\r\n\n\r\n") == 2


@contextmanager
def called(served: Served, function: str) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(30)
        connected.connect(str(served.socket_path("a")))
        body = b"[[10.3],{}]"
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
