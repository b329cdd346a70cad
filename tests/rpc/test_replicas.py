"""Copies of an interface behind one front: routing, and what callers notice."""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from seer.errors import (
    ArgumentError,
    BudgetExceededError,
    CallCancelledError,
    DeadlineExceededError,
    HandleError,
    InterfaceRestartedError,
    RemoteError,
    UnknownFunctionError,
)
from seer.rpc.client import deadline
from tests.rpc.replicas import WAIT_FOR, copies, pids
from tests.rpc.serving import (
    SOON,
    ControlFailed,
    Served,
    exchange,
    run_together,
    serving,
    wait_until,
)

pytestmark = pytest.mark.full

SOURCE = (
    WAIT_FOR
    + """
    import numpy as np
    from seer.rpc import Handle

    state = {"calls": 0}

    @expose(stateful=False)
    def where() -> int:
        return os.getpid()

    @expose
    def mine() -> list:
        state["calls"] += 1
        return [os.getpid(), state["calls"]]

    @expose
    def keep_array(n: int) -> Handle:
        return np.arange(n)

    @expose(stateful=False)
    def total(of: Handle) -> int:
        return int(of.value.sum())

    @expose(stateful=False)
    def ramp(n: int) -> np.ndarray:
        return np.arange(n, dtype="f8")

    @expose(stateful=False)
    def double(values: np.ndarray) -> np.ndarray:
        values *= 2
        return values

    @expose(stateful=False)
    def append(path: str, line: str) -> None:
        time.sleep(0.01)  # longer than a copy waits for a busy machine's processor
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, (line + "\\n").encode())
        os.close(fd)

    @expose(stateful=False)
    def count_up(n: int, size: int, made: str):
        try:
            for i in range(n):
                Path(made).write_text(str(i))
                yield [i, "x" * size]
        finally:
            Path(made + ".end").touch()

    @expose(stateful=False)
    def fail(message: str) -> None:
        raise KeyError(message)

    @expose(stateful=False, batch=8, batch_wait=0.5)
    def lengths(texts: list[str]) -> list[list[int]]:
        end = time.monotonic() + 60
        while not Path(texts[0]).exists() and time.monotonic() < end:
            time.sleep(0.002)
        return [[len(text), len(texts)] for text in texts]

    @expose(stateful=False, max_concurrency=4)
    def meet(path: str, name: str, others: int) -> bool:
        Path(path, name).touch()
        end = time.monotonic() + 20
        while len(os.listdir(path)) < others:
            if time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True

    @expose(stateful=False)
    async def later() -> int:
        import asyncio
        await asyncio.sleep(0.01)
        return os.getpid()
"""
)
CALLERS: dict[str, dict[str, float]] = {"a": {}, "b": {}, "c": {}, "limited": {"calls": 20}}


@pytest.fixture(scope="module")
def served() -> Generator[Served]:
    with serving(SOURCE, replicas=2, callers=CALLERS) as served:
        yield served


def test_calls_that_need_no_state_use_all_copies(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "go"
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(served.gate().call, "wait_for", (str(path),)) for _ in range(2)]
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        path.touch()
        assert {future.result(timeout=20) for future in waiting} == pids(served)


def test_all_else_of_a_caller_stays_in_one_copy(served: Served) -> None:
    homes: dict[str, set[int]] = {}
    for name in ("a", "b"):
        gate = served.gate(name)
        before = gate.call("mine")[1]
        found = run_together(lambda gate=gate: gate.call("mine"), 6)
        homes[name] = {pid for pid, _ in found}
        assert sorted(number for _, number in found) == list(range(before + 1, before + 7))
    assert all(len(found) == 1 for found in homes.values())


def test_callers_find_their_homes_in_different_copies() -> None:
    with serving(SOURCE, replicas=2, callers={"a": {}, "b": {}, "c": {}, "d": {}}) as served:
        homes = Counter(served.gate(name).call("mine")[0] for name in "abcd")
        assert homes == dict.fromkeys(pids(served), 2)


def test_handles_are_found_where_they_are_and_by_their_owner_only(served: Served) -> None:
    gate, other = served.gate("a"), served.gate("b")
    kept = gate.call("keep_array", (100,))
    for _ in range(4):
        assert gate.call("total", (kept,)) == 4950
    assert kept[3:5].tolist() == [3, 4]
    with pytest.raises(HandleError):
        other.fetch(kept.reference(), None)
    status, text = exchange(
        served.socket_path("b"),
        _post("total", {"args": [{"$seer": "handle", "id": kept.reference()}]}),
    )
    assert (status, json.loads(text)["error"]["type"]) == (404, "HandleError")
    gate.free(kept.reference())
    with pytest.raises(HandleError):
        kept.fetch()


@pytest.mark.parametrize("kind", ["path", "frames:path"])
@pytest.mark.parametrize("count", [10, 20_000, 2_000_000])
def test_arrays_pass_in_both_directions(served: Served, kind: str, count: int) -> None:
    gate = served.gate(kind=kind)
    ramp = gate.call("ramp", (count,))
    assert np.array_equal(ramp, np.arange(count))
    assert np.array_equal(gate.call("double", (ramp,)), 2 * np.arange(count))
    assert np.array_equal(ramp, np.arange(count))


def test_arrays_that_are_kept_do_not_change_with_later_calls(served: Served) -> None:
    gate = served.gate()
    kept = [gate.call("double", (np.full(300_000, i, "f8"),)) for i in range(8)]
    assert [set(array.tolist()) for array in kept] == [{2.0 * i} for i in range(8)]


@pytest.mark.parametrize("count", [40_000, 150_000])
def test_a_caller_that_keeps_more_arrays_than_there_are_slots_gets_them_all(
    served: Served, count: int
) -> None:
    gate = served.gate()
    kept = [gate.call("ramp", (count,)) for _ in range(133)]  # a caller has 128 slots
    assert all(np.array_equal(array, np.arange(count)) for array in kept)


def test_a_caller_with_only_json_is_served_too(served: Served) -> None:
    status, text = exchange(served.socket_path("a"), _post("ramp", {"args": [3]}))
    assert (status, json.loads(text)) == (200, {"result": [0.0, 1.0, 2.0]})


def test_errors_are_those_of_the_function(served: Served) -> None:
    gate = served.gate()
    with pytest.raises(KeyError, match="nothing") as caught:
        gate.call("fail", ("nothing",))
    assert isinstance(caught.value, RemoteError)
    assert ", in fail\n" in caught.value.remote_traceback
    with pytest.raises(ArgumentError, match="ramp"):
        gate.call("ramp", ("many",))
    with pytest.raises(UnknownFunctionError):
        gate.call("nothing_like_it")


def test_a_stream_is_read_no_faster_than_its_caller_reads(served: Served, tmp_path: Path) -> None:
    made = tmp_path / "made"
    other = served.gate("b")
    items = served.gate().stream("count_up", (1000, 1 << 20, str(made)))
    stream = cast("Generator[list[Any]]", items)
    assert next(stream)[0] == 0
    for _ in range(300):  # long enough to make hundreds if nothing limited it
        other.call("where")
    assert int(made.read_text() or 0) < 100
    assert [item[0] for item, _ in zip(stream, range(150), strict=False)] == list(range(1, 151))
    stream.close()
    wait_until((tmp_path / "made.end").exists)


def test_a_stream_ends_with_its_last_item(served: Served, tmp_path: Path) -> None:
    found = list(served.gate().stream("count_up", (5, 3, str(tmp_path / "made"))))
    assert found == [[i, "xxx"] for i in range(5)]


def test_a_deadline_stops_a_call_in_its_copy(served: Served, tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(DeadlineExceededError, match="it had run for"), deadline(1.0):
        served.gate().call("wait_for", (str(tmp_path / "never"),))
    assert time.monotonic() - begin < SOON
    wait_until(lambda: all(copy["running"] == 0 for copy in copies(served)))


def test_a_call_that_waits_for_a_copy_has_its_deadline_too(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "go"
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(served.gate().call, "wait_for", (str(path),)) for _ in range(2)]
        try:
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
            # Long enough for a busy machine to send the call.
            with pytest.raises(DeadlineExceededError, match="was not executed"), deadline(2.0):
                served.gate().call("where")
        finally:
            path.touch()
        assert {future.result(timeout=20) for future in running} == pids(served)


def test_a_caller_that_goes_away_cancels_its_call(served: Served, tmp_path: Path) -> None:
    gate = served.gate("c")
    running = threading.Thread(
        target=_quietly, args=(gate.call, "wait_for", (str(tmp_path / "x"),))
    )
    running.start()
    wait_until(lambda: bool(list(tmp_path.iterdir())))
    served.control("POST", "/v1/remove/c")
    running.join(timeout=20)
    wait_until(lambda: all(copy["running"] == 0 for copy in copies(served)))
    served.control("POST", "/v1/callers", {"name": "c", "socket": str(served.socket_path("c"))})
    assert served.gate("c").call("mine")[0] in pids(served)


def test_a_cancelled_call_ends(served: Served, tmp_path: Path) -> None:
    path = served.socket_path("a")
    answers: list[tuple[int, bytes]] = []
    message = _post("wait_for", {"args": [str(tmp_path / "never")]}, call="to-cancel")
    asking = threading.Thread(target=lambda: answers.append(exchange(path, message)))
    asking.start()
    wait_until(lambda: bool(list(tmp_path.iterdir())))
    assert served.gate().cancel("to-cancel")
    asking.join(timeout=20)
    (status, text), error = answers[0], CallCancelledError.__name__
    assert (status, json.loads(text)["error"]["type"]) == (409, error)


def test_an_id_that_is_known_is_not_executed_again(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    message = _post("append", {"args": [str(file), "once"]}, call="only-once")
    answers = run_together(lambda: exchange(served.socket_path("a"), message), 5)
    assert set(answers) == {(200, b'{"result":null}')}
    assert file.read_text() == "once\n"


def test_a_budget_is_one_for_all_copies_and_exact(served: Served) -> None:
    gate = served.gate("limited")

    def call() -> bool:
        try:
            return gate.call("where") > 0
        except BudgetExceededError:
            return False

    assert sum(run_together(call, 50)) == 20
    assert gate.budget()["caller"]["used"]["calls"] == 20


def test_calls_are_still_batched(served: Served, tmp_path: Path) -> None:
    # Both copies are held by their first batches until all calls have come.
    release = tmp_path / "release"
    with ThreadPoolExecutor(16) as pool:
        found = [pool.submit(served.gate().call, "lengths", (str(release),)) for _ in range(16)]
        wait_until(lambda: served.calls() == 16)
        release.touch()
        results = [one.result() for one in found]
    assert {length for length, _ in results} == {len(str(release))}
    assert max(size for _, size in results) > 1


def test_functions_with_threads_run_as_often_at_once_as_all_copies_allow(
    served: Served, tmp_path: Path
) -> None:
    names = iter(range(8))
    assert all(
        run_together(lambda: served.gate().call("meet", (str(tmp_path), str(next(names)), 8)), 8)
    )


def test_async_functions_run_in_copies(served: Served) -> None:
    assert set(run_together(lambda: served.gate().call("later"), 8)) <= pids(served)


def test_a_flooding_caller_waits_for_itself_only(served: Served, tmp_path: Path) -> None:
    go, file = tmp_path / "go", tmp_path / "lines"
    flood, modest = served.gate("a"), served.gate("b")
    wait_until(lambda: served.calls() == 0)
    with ThreadPoolExecutor(64) as pool:
        held = [pool.submit(served.gate().call, "wait_for", (str(go),)) for _ in range(2)]
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        late = [pool.submit(flood.call, "append", (str(file), "flood")) for _ in range(50)]
        wait_until(lambda: served.calls() == 52)
        late += [pool.submit(modest.call, "append", (str(file), "modest")) for _ in range(5)]
        wait_until(lambda: served.calls() == 57)
        go.touch()
        for future in [*held, *late]:
            future.result(timeout=20)
    lines = file.read_text().split()
    assert lines.count("flood") == 50
    assert "modest" not in lines[20:]


def test_every_call_is_recorded_once_with_its_copy(tmp_path: Path) -> None:
    with serving(SOURCE, replicas=2, record=str(tmp_path / "record")) as served:
        gate = served.gate()
        followed = served.follow("a")
        run_together(lambda: gate.call("where"), 20)
        list(gate.stream("count_up", (3, 1, str(tmp_path / "made"))))
        gate.call("ramp", (500_000,))
        with pytest.raises(KeyError):
            gate.call("fail", ("recorded",))
        lines = served.recorded(followed)
        numbers = {copy["copy"] for copy in copies(served)}
    functions = Counter(line["function"] for line in lines)
    assert functions == {"where": 20, "count_up": 1, "ramp": 1, "fail": 1}
    assert len({line["call"] for line in lines}) == 23
    assert {line["copy"] for line in lines} == numbers
    by_function = {line["function"]: line for line in lines}
    assert [i["item"][0] for i in by_function["count_up"]["result"]["stream"]] == [0, 1, 2]
    assert by_function["ramp"]["result_buffers"][0]["bytes"] == 4_000_000
    assert by_function["fail"]["outcome"] == "KeyError"


def test_nothing_of_a_hidden_model_is_shown() -> None:
    source = """
        import os

        path = get_model_path("lab/topsecret")

        @expose(stateful=False)
        def tell() -> str:
            raise ValueError(f"{path} is where lab/topsecret lies")

        @expose(stateful=False)
        def end() -> None:
            os.write(2, b"lab/topsecret was here\\n")
            os._exit(5)
    """
    models, hidden = {"lab/topsecret": "/models/lab--topsecret"}, {"lab/topsecret": "model_0"}
    with serving(source, replicas=2, models=models, hidden=hidden) as served:
        gate = served.gate()
        shown: list[str] = [json.dumps(gate.schema())]
        for function in ("tell", "end", "tell"):
            try:
                gate.call(function)
            except (ValueError, ConnectionError) as error:
                shown.append(f"{error} {getattr(error, 'remote_traceback', '')}")
        assert len(shown) == 4
        assert not [text for text in shown if "topsecret" in text]


def test_each_copy_sees_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        import os

        seen = os.environ["CUDA_VISIBLE_DEVICES"]

        @expose
        def gpu() -> str:
            return seen
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with serving(source, replicas=2, callers={"a": {}, "b": {}}) as served:
        assert {served.gate(name).call("gpu") for name in "ab"} == {"3", "5"}
        gone = copies(served)[0]
        os.kill(gone["pid"], 9)
        wait_until(lambda: gone["pid"] not in pids(served) and len(pids(served)) == 2)
        assert sorted(copy["gpu"] for copy in copies(served)) == ["3", "5"]


def test_reloading_changes_all_copies_or_none() -> None:
    source = """
        import os

        @expose(stateful=False)
        def version() -> list:
            return [{version}, os.getpid()]
    """
    with serving(source.format(version=1), replicas=2) as served:
        gate = served.gate()
        served.write("nonsense(")
        with pytest.raises(ControlFailed, match="never closed"):
            served.control("POST", "/v1/reload")
        assert {tuple(gate.call("version")) for _ in range(10)} == {(1, p) for p in pids(served)}
        added = "\n@expose\ndef more() -> int:\n    return 7\n"
        served.write(source.format(version=2))
        with served.file.open("a") as file:
            file.write(added)
        served.control("POST", "/v1/reload")
        assert {tuple(gate.call("version")) for _ in range(10)} == {(2, p) for p in pids(served)}
        assert gate.call("more") == 7


def test_a_file_that_cannot_be_served_says_so_and_leaves_nothing() -> None:
    with serving("@expose\ndef f(x):\n    return x\n", wait=False, replicas=2) as served:
        with pytest.raises(ControlFailed) as caught:
            served.ready()
        assert (caught.value.error["type"], caught.value.error["line"]) == ("ServeError", 1)
        wait_until(lambda: not copies(served))


def test_a_home_that_ends_is_told_once() -> None:
    with serving(SOURCE, replicas=2, callers={"a": {}, "b": {}}) as served:
        gate, other = served.gate("a"), served.gate("b")
        home, _ = gate.call("mine")
        elsewhere, _ = other.call("mine")
        kept = gate.call("keep_array", (3,))
        os.kill(home, 9)
        wait_until(lambda: home not in pids(served) and len(pids(served)) == 2)
        with pytest.raises(InterfaceRestartedError, match="SIGKILL"):
            gate.call("mine")
        assert gate.call("mine")[1] == 1
        with pytest.raises(HandleError):
            kept.fetch()
        assert other.call("mine") == [elsewhere, 2]


def _post(function: str, body: dict[str, Any], call: str = "") -> bytes:
    text = json.dumps(body).encode()
    named = f"seer-call: {call}\r\n" if call else ""
    head = f"POST /v1/call/{function} HTTP/1.1\r\nhost: gate\r\n{named}"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(text) + text


def _quietly(call: Callable[..., object], *arguments: object) -> None:
    """Make a call whose error does not matter, because the test looks at its function."""
    try:
        call(*arguments)
    except (CallCancelledError, ConnectionError):
        return
