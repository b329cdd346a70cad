"""Every call is in the record, no call waits for it, and a full disk costs records, not calls."""

import asyncio
import hashlib
import json
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import CallLostError, DeadlineExceededError, GateError
from seer.rpc.client import deadline
from seer.rpc.client._responses import ResponseReader
from seer.rpc.client._tool_call import tool_call
from seer.rpc.server._streams import recorded_stream
from seer.rpc.wire._chunks import ChunkReader, split_chunk
from seer.rpc.wire._http import head_prefix
from tests.rpc.serving import (
    HOLD,
    SLOW,
    SOON,
    ControlFailed,
    Served,
    exchange,
    holding,
    http,
    read_answer,
    run_together,
    serving,
    wait_until,
)

pytestmark = pytest.mark.full

SOURCE = (
    """
    import os
    import time
    from collections.abc import Iterator
    import numpy as np
    from seer.rpc import Handle

    @expose
    def small(x: int) -> int:
        return x + 1

    @expose
    def fail(message: str) -> None:
        raise ValueError(message)

    @expose
    def double(values: np.ndarray) -> np.ndarray:
        values *= 2
        return values

    @expose(batch=4, batch_wait=0.2)
    def together(x: list[int]) -> list[int]:
        return x

    @expose
    def leave() -> None:
        os._exit(3)

    @expose
    def grow(n: int) -> Iterator[np.ndarray]:
        for i in range(1, n + 1):
            yield np.full(i, float(i))
        if n < 0:
            raise ValueError("enough")

    @expose
    def break_off(n: int) -> Iterator[int]:
        yield from range(n)
        os._exit(3)

    @expose
    def kept() -> Handle:
        return [10, 20, 30]

    @expose
    def stubborn(release: str) -> str:
        while not os.path.exists(release):
            try:
                time.sleep(0.01)
            except BaseException:
                pass
        return release
"""
    + HOLD
)


@pytest.fixture
def served(tmp_path: Path) -> Generator[Served]:
    with serving(SOURCE, record=str(tmp_path / "record")) as served:
        served.follow("a")
        yield served


def lines(served: Served, count: int) -> list[dict[str, Any]]:
    """The record, which must have that many lines."""
    found = served.recorded(served.followed)
    assert len(found) >= count, found
    return found


def blob(served: Served, reference: dict[str, Any]) -> bytes:
    """A large value of the record."""
    data = (served.followed / "blobs" / str(reference["file"])).read_bytes()
    assert hashlib.sha256(data).hexdigest() == reference["sha256"]
    return data


def taken(served: Served, after: int) -> dict[str, Any]:
    """The answer to a controller that has taken everything up to an offset."""
    return served.control("POST", f"/v1/records/{served.followed.name}", {"after": after})


def test_who_what_and_how_it_ended(served: Served) -> None:
    gate = served.gate()
    gate.call("small", (1,))
    gate.call("small", (), {"x": 2})
    with pytest.raises(ValueError, match="no"):
        gate.call("fail", ("no",))
    found = lines(served, 3)
    assert [line["function"] for line in found] == ["small", "small", "fail"]
    assert [line["arguments"] for line in found] == [[[1], {}], [[], {"x": 2}], [["no"], {}]]
    assert [line["outcome"] for line in found] == ["ok", "ok", "ValueError"]
    first = found[0]
    assert first["caller"] == "a"
    assert first["result"] == {"result": 2}
    assert first["batch"] == 1
    assert 0 <= first["run"] < 1
    assert 0 <= first["queue"] < 1
    assert first["bytes_in"] == len(b"[[1],{}]")
    assert first["source"] == hashlib.sha256(served.file.read_bytes()).hexdigest()
    assert len({line["call"] for line in found}) == 3


def test_calls_by_hand_are_written_in_the_same_form(served: Served) -> None:
    http(served.socket_path("a"), "POST", "/v1/call/small", {"kwargs": {"x": 3}})
    assert lines(served, 1)[0]["arguments"] == [[], {"x": 3}]


@pytest.mark.parametrize("size", [1000, 2_000_000])
def test_arrays_are_blobs_as_they_came_and_as_they_went(served: Served, size: int) -> None:
    values = np.arange(size, dtype=np.float64)
    found = served.gate().call("double", (values,))
    found[:] = -1
    line = lines(served, 1)[0]
    came = np.frombuffer(blob(served, line["argument_buffers"][0]), "<f8")
    went = np.frombuffer(blob(served, line["result_buffers"][0]), "<f8")
    assert np.array_equal(came, values)
    assert np.array_equal(went, values * 2)


@pytest.mark.parametrize("replicas", [1, 2])
def test_digests_are_made_after_the_answer_and_of_what_was_sent(
    tmp_path: Path, replicas: int
) -> None:
    with serving(SOURCE, record=str(tmp_path / "record"), replicas=replicas) as served:
        record = served.follow("a")
        record.mkdir(parents=True)
        os.mkfifo(record / "0.jsonl")
        gate = served.gate()
        # The thread that writes the record now waits for a reader of its file.
        assert gate.call("small", (1,)) == 2
        values = np.arange(1_000_000, dtype=np.float64)
        found = gate.call("double", (values,))
        assert not (record / "blobs").exists() or not list((record / "blobs").iterdir())
        assert np.array_equal(found, values * 2)
        found[:] = -1
        with (record / "0.jsonl").open() as file:
            written = [json.loads(file.readline()) for _ in range(2)]
        assert np.array_equal(
            np.frombuffer(blob(served, written[1]["result_buffers"][0])), values * 2
        )


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_record_names_the_source_that_ran(tmp_path: Path, replicas: int) -> None:
    with serving(SOURCE, record=str(tmp_path / "record"), replicas=replicas) as served:
        served.follow("a")
        gate = served.gate()
        sources: list[str] = []
        for change in ("x + 1", "x + 2"):
            served.write(SOURCE.replace("x + 1", change))
            served.control("POST", "/v1/reload")
            sources += [hashlib.sha256(served.file.read_bytes()).hexdigest()] * 2
            assert [gate.call("small", (1,)) for _ in range(2)] == [int(change[-1]) + 1] * 2
        assert [line["source"] for line in lines(served, 4)] == sources


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_line_names_the_tool_call_that_the_caller_says(
    tmp_path: Path, replicas: int
) -> None:
    with serving(SOURCE, record=str(tmp_path / "record"), replicas=replicas) as served:
        served.follow("a")
        gate = served.gate()
        gate.call("small", (1,))
        with tool_call("one"):
            gate.call("small", (1,))
            with tool_call("two"), deadline(60):
                gate.call("small", (), {"x": 1})
            gate.call("double", (np.ones(400_000),))
            list(gate.stream("grow", (1,)))
            later = asyncio.create_task(gate.acall("small", (2,)))
            with pytest.raises(AttributeError):
                gate.call("nothing")
        await later
        gate.call("small", (1,))
        # A new token in the same place of the same connection is not mistaken for the last one.
        for name in ("three", "four"):
            with tool_call(name):
                gate.call("small", (1,))
        named = [line.get("tool_call") for line in lines(served, 10)]
    assert named == [None, "one", "two", "one", "one", "one", "one", None, "three", "four"]


@pytest.mark.parametrize("value", ["", "x" * 65, "a b", 'a"b', "\u00fc"])
def test_a_tool_call_that_is_no_id_is_refused(served: Served, value: str) -> None:
    head = f"POST /v1/call/small HTTP/1.1\r\nseer-tool-call: {value}\r\ncontent-length: 8\r\n\r\n"
    status, answer = exchange(served.socket_path("a"), head.encode() + b"[[1],{}]")
    assert status == 400 and b"seer-tool-call" in answer
    assert "tool_call" not in lines(served, 1)[0]


def test_the_same_result_has_the_same_digest(served: Served) -> None:
    gate = served.gate()
    for x in (1, 1, 2):
        gate.call("small", (x,))
    digests = [line["result_digest"] for line in lines(served, 3)]
    assert digests[0] == digests[1] != digests[2]


def test_refused_requests_are_recorded_too(served: Served) -> None:
    with pytest.raises(AttributeError):
        served.gate().call("nothing")
    line = lines(served, 1)[0]
    assert line["refused"]
    assert line["outcome"] == "UnknownFunctionError"


def test_a_call_that_died_with_its_process_is_recorded(served: Served) -> None:
    with pytest.raises(ConnectionError):
        served.gate().call("leave")
    line = lines(served, 1)[-1]
    assert (line["function"], line["outcome"]) == ("leave", "CallLostError")
    assert line["arguments"] == [[], {}]
    assert "status 3" in line["error"]


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_calls_that_a_crash_ends_are_recorded_with_their_arguments_times_and_what_was_told(
    tmp_path: Path, replicas: int
) -> None:
    record = str(tmp_path / "record")
    with serving(SOURCE, record=record, replicas=replicas, restart="on-failure") as served:
        followed = served.follow("a")
        never = str(tmp_path / "never")
        given: list[tuple[str, tuple[Any, ...]]] = [
            ("hold", (never,)),
            ("small", (1,)),
            ("fail", ("ä" * 800,)),
            ("fail", ("x" * 3000,)),
            ("double", (np.ones(10),)),
        ]
        with ThreadPoolExecutor(len(given) + 1) as pool:
            # The first call occupies the thread of functions.
            calls = [pool.submit(served.gate().call, "hold", (never,))]
            wait_until(lambda: served.calls() == 1)
            for name, arguments in given:
                before = served.calls()
                calls.append(pool.submit(served.gate().call, name, arguments))
                wait_until(lambda before=before: served.calls() == before + 1)
            served.kill_interface()
            told: set[str] = set()
            for call in calls:
                error = call.exception(timeout=60)
                assert isinstance(error, CallLostError)
                told.add(str(error))
        served.ready()
        lost = served.recorded(followed)
        assert {line["error"] for line in lost} == told
        assert {line["outcome"] for line in lost} == {"CallLostError"}
        ran, *waited = lost
        assert [(line["function"], line.get("arguments")) for line in waited] == [
            ("hold", [[never], {}]),
            ("small", [[1], {}]),
            ("fail", [["ä" * 800], {}]),
            ("fail", None),
            ("double", None),
        ]
        assert ran["run"] > 0.0
        assert all(line["run"] == 0.0 and line["queue"] > 0.0 for line in waited)
        received = [line["time"] - line["run"] - line["queue"] for line in lost]
        assert received == sorted(received)


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_items_of_a_stream_that_end_with_their_process_are_counted(
    tmp_path: Path, replicas: int
) -> None:
    record = str(tmp_path / "record")
    with serving(SOURCE, record=record, replicas=replicas, restart="on-failure") as served:
        followed = served.follow("a")
        for count in (2, 0):
            read: list[int] = []
            with pytest.raises(CallLostError):
                read.extend(served.gate().stream("break_off", (count,)))
            assert read == [*range(count)]
        served.ready()
        some, none = served.recorded(followed)
    assert {some["outcome"], none["outcome"]} == {"CallLostError"}
    # The front has the items of its copies.
    kept = [{"item": 0}, {"item": 1}] if replicas > 1 else []
    assert some["result"]["stream"] == kept
    assert some["result"].get("left_out", 0) == 2 - len(kept)
    assert some["result"]["error"]["type"] == "CallLostError"
    assert "left_out" not in none.get("result", {})


@pytest.mark.parametrize(
    "body", [b"[[1", b"[[1],{}]x", b"\xff", b"[" * 50_000, b'{"args":' * 2000, b'[[1],{},"\n"]']
)
def test_a_malformed_body_leaves_a_readable_record(served: Served, body: bytes) -> None:
    head = b"POST /v1/call/small HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert exchange(served.socket_path("a"), head + body)[0] == 400
    assert served.gate().call("small", (1,)) == 2
    assert [line["outcome"] for line in lines(served, 2)] == ["ProtocolError", "ok"]


def test_any_text_in_a_call_leaves_one_line(served: Served) -> None:
    text = "line\u2028separator \x85 \ud800 \r\n end"
    with pytest.raises(ValueError):
        served.gate().call("fail", (text,))
    assert lines(served, 1)[0]["arguments"] == [[text], {}]
    found = taken(served, 0)["lines"]
    assert json.loads(found[0])["arguments"] == [[text], {}]


def test_the_controller_reads_it_as_it_grows(served: Served) -> None:
    gate = served.gate()
    gate.call("small", (1,))
    first = taken(served, 0)
    assert json.loads(first["lines"][0])["function"] == "small"
    gate.call("small", (2,))
    second = taken(served, len(first["lines"][0]) + 1)
    assert json.loads(second["lines"][0])["arguments"] == [[2], {}]


def test_after_a_flush_every_answered_call_is_written_down(served: Served) -> None:
    gate = served.gate()
    for number in range(200):
        gate.call("small", (number,))
    assert [line["arguments"][0][0] for line in lines(served, 200)] == [*range(200)]


def test_what_a_stream_gave_is_recorded_and_can_be_streamed_again(served: Served) -> None:
    assert [len(item) for item in served.gate().stream("grow", (3,))] == [1, 2, 3]
    with pytest.raises(ValueError, match="enough"):
        list(served.gate().stream("grow", (-1,)))
    good, bad = lines(served, 2)
    assert [item["buffers"] for item in good["result"]["stream"]] == [[8], [16], [24]]
    assert good["result"]["end"] is None
    assert bad["result"]["error"]["message"] == "enough"
    assert (good["outcome"], bad["outcome"]) == ("ok", "ValueError")
    buffers = [blob(served, one) for one in good["result_buffers"]]
    message = recorded_stream(json.dumps(good["result"]), buffers, head_prefix("e"))
    reader, chunks = ResponseReader(), ChunkReader()
    response = reader.feed(message)
    assert response is not None and response.streamed
    found = [split_chunk(chunk) for chunk in chunks.feed(reader.take_rest()) if chunk is not None]
    assert [np.frombuffer(b, "<f8").tolist() for _, [b] in found[:-1]] == [[1], [2, 2], [3, 3, 3]]
    assert json.loads(found[-1][0]) == {"end": None}


def test_a_fetch_is_recorded_with_its_handle(served: Served) -> None:
    handle = served.gate().call("kept")
    assert handle.fetch(1) == 20
    made, fetched = lines(served, 2)
    assert fetched["function"] == "handle.fetch"
    assert fetched["handle"] == made["result"]["result"]["id"]


LATE = """
    import time

    import numpy as np

    @expose(max_concurrency=4)
    def large() -> np.ndarray:
        return np.zeros(50_000_000)

    @expose(max_concurrency=4)
    def small(x: int) -> int:
        return x

    @expose(max_concurrency=4)
    def stay() -> None:
        time.sleep(100)
"""


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_call_after_a_run_that_a_crash_ends_is_not_in_that_run(
    tmp_path: Path, replicas: int
) -> None:
    record = str(tmp_path / "record")
    with (
        serving(LATE, record=record, replicas=replicas, restart="on-failure") as served,
        ThreadPoolExecutor(1) as pool,
    ):
        first = served.follow("a")
        gate, pid = served.gate("a"), served.pid
        # The record has its digest only after a while, and the end of the run waits for that.
        assert gate.call("large", ()).size == 50_000_000
        with ask(served, f"/v1/flush/{first.name}") as asking:
            assert served.pid == pid  # answered after the request was passed on
            for number in range(2):
                assert gate.call("small", (number,)) == number
            lost = pool.submit(gate.call, "stay", ())
            wait_until(lambda: served.calls() == 1)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(CallLostError):
                lost.result(timeout=SOON)
            assert read_answer(asking)[0] == 200
        assert "stay" not in [line["function"] for line in served.recorded(first)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_calls_after_a_run_that_a_crash_left_unwritten_are_missing_from_the_next_run_only(
    tmp_path: Path, replicas: int
) -> None:
    record = str(tmp_path / "record")
    with serving(LATE, record=record, replicas=replicas, restart="on-failure") as served:
        first, gate = served.follow("a"), served.gate("a")
        gate.call("small", (1,))
        served.control("POST", f"/v1/flush/{first.name}", {"last": True})
        # Its digest takes a while, and the next call waits for it to be recorded.
        assert gate.call("large", ()).size == 50_000_000
        gate.call("small", (2,))
        served.kill_interface()
        assert served.control("POST", f"/v1/flush/{first.name}")["lost"] == 0
        assert served.control("POST", "/v1/follow", {"callers": ["a"]})["dropped"] == 2


def test_a_flood_of_refused_requests_is_counted_and_not_written_out(served: Served) -> None:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(served.socket_path("a")))
        for _ in range(1000):
            connected.sendall(b"POST /v1/call/nothing HTTP/1.1\r\ncontent-length: 2\r\n\r\n[]")
            assert read_answer(connected)[0] == 404
    found = lines(served, 1)
    assert all(line["refused"] for line in found)
    told = [int(line["error"].split()[0]) for line in found if "more requests" in line["error"]]
    assert len(found) < 500
    assert len(found) - len(told) + sum(told) == 1000


def test_only_digests_where_results_shall_not_be_kept(tmp_path: Path) -> None:
    record = tmp_path / "record"
    with serving(SOURCE, record=str(record), record_results=False) as served:
        served.follow("a")
        served.gate().call("double", (np.zeros(100_000),))
        assert lines(served, 1)[0]["result_buffers"][0]["bytes"] == 800_000
        assert not (served.followed / "blobs").exists()


@contextmanager
def small_disk(folder: Path, size: str) -> Generator[str]:
    """A file system of some size."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        yield str(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_full_disk_costs_records_and_no_calls(tmp_path: Path, replicas: int) -> None:
    with (
        small_disk(tmp_path / "small-disk", "200k") as record,
        serving(SOURCE, record=record, replicas=replicas) as served,
    ):
        followed = served.follow("a")
        gate = served.gate()
        for i in range(30):
            assert gate.call("double", (np.full(10_000, float(i)),))[0] == 2 * i
        assert gate.call("small", (1,)) == 2
        kept = served.recorded(followed)
        told = served.control("POST", f"/v1/flush/{followed.name}")
        assert "No space left" in told["why"]
        assert 0 < told["lost"] == 31 - len(kept)
        assert kept[-1]["function"] == "small"


def test_what_nobody_follows_is_held_within_bounds_and_goes_to_who_follows_next(
    tmp_path: Path,
) -> None:
    record = tmp_path / "record"
    callers: dict[str, Any] = {"a": {}, "b": {}}
    with serving(SOURCE, record=str(record), callers=callers) as served:
        for n in range(20):
            served.gate("a").call("double", (np.full(1_000_000, float(n)),))
        served.gate("b").call("small", (1,))
        found = served.control("POST", "/v1/follow", {"callers": ["a"]})
        size = sum(path.stat().st_size for path in record.rglob("*") if path.is_file())
        assert size < 100 << 20
        mine = served.recorded(record / found["follow"])
        # Each call has 8 MB of arguments and 8 MB of results, and the last 64 MiB are held.
        assert len(mine) == 4
        assert found["dropped"] == 16
        assert mine[-1]["argument_buffers"][0]["bytes"] == 8_000_000
        assert served.recorded(served.follow("a")) == []
        assert [line["caller"] for line in served.recorded(served.follow("b"))] == ["b"]


def test_a_follow_has_its_own_callers_only_and_leaves_nothing_behind(tmp_path: Path) -> None:
    record = tmp_path / "record"
    callers: dict[str, Any] = {"a": {}, "b": {}, "script-1": {}}
    with serving(SOURCE, record=str(record), callers=callers) as served:
        mine = served.follow("a", prefix="script-")
        other = served.follow("b", prefix="script-")
        for n in range(3):
            for caller in callers:
                served.gate(caller).call("double", (np.full(10_000, float(n)),))
        assert [line["caller"] for line in served.recorded(mine)] == ["a", "script-1"] * 3
        assert [line["caller"] for line in served.recorded(other)] == ["b"] * 3
        for followed in (mine, other):
            served.control("POST", f"/v1/unfollow/{followed.name}")
        assert [path for path in record.rglob("*") if path.is_file()] == []
        with pytest.raises(ControlFailed, match="there is no follow"):
            served.control("POST", f"/v1/flush/{mine.name}")


def test_what_was_taken_is_removed(served: Served) -> None:
    gate = served.gate()
    for n in range(5):
        gate.call("double", (np.full(10_000, float(n)),))
    keys = ("argument_buffers", "result_buffers")
    files = [line[key][0]["file"] for line in lines(served, 5) for key in keys]
    after = (served.followed / "0.jsonl").stat().st_size
    gate.call("small", (1,))
    position = {"after": after, "files": files}
    found = served.control("POST", f"/v1/records/{served.followed.name}", position)
    assert [json.loads(line)["function"] for line in found["lines"]] == ["small"]
    assert list((served.followed / "blobs").iterdir()) == []


def test_calls_that_a_crash_left_unwritten_are_counted(tmp_path: Path) -> None:
    with serving(SOURCE, record=str(tmp_path / "record"), restart="on-failure") as served:
        followed = served.follow("a")
        followed.mkdir(parents=True)
        # The recorder waits for a reader, so that nothing is written before the crash.
        os.mkfifo(followed / "0.jsonl")
        gate = served.gate()
        for n in range(5):
            gate.call("small", (n,))
        served.kill_interface()
        (followed / "0.jsonl").unlink()
        told = served.control("POST", f"/v1/flush/{followed.name}")
        assert told["lost"] == 5
        assert "before it could write them down" in told["why"]


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_calls_between_two_runs_that_a_crash_ends_are_counted_for_the_next_run(
    tmp_path: Path, replicas: int
) -> None:
    callers: dict[str, Any] = {"a": {}, "b": {}, "script-1": {}}
    config: dict[str, Any] = {"record": str(tmp_path / "record"), "replicas": replicas}

    def dropped(*names: str, prefix: str = "") -> int:
        asked = {"callers": names, "prefix": prefix}
        return served.control("POST", "/v1/follow", asked)["dropped"]

    with (
        serving(SOURCE, **config, callers=callers, restart="on-failure") as served,
        ThreadPoolExecutor(1) as pool,
    ):
        first = served.follow("a")
        served.gate("a").call("small", (0,))
        unfollow(served, first)
        for name, count in (("a", 3), ("b", 1), ("script-1", 2)):
            for number in range(count):
                served.gate(name).call("small", (number,))
        second = served.follow("b")
        assert len(served.recorded(second)) == 1  # all others are kept by now
        unfollow(served, second)
        running = pool.submit(served.gate("a").call, "hold", (str(tmp_path / "never"),))
        wait_until(lambda: served.calls() == 1)
        served.kill_interface()
        with pytest.raises(CallLostError):
            running.result(timeout=SOON)
        assert [dropped("b"), dropped("a"), dropped("a")] == [0, 4, 0]
        assert dropped(prefix="script-") == 2


def test_a_line_that_a_crash_left_unfinished_is_removed(tmp_path: Path) -> None:
    with serving(SOURCE, record=str(tmp_path / "record"), restart="on-failure") as served:
        followed = served.follow("a")
        assert served.gate().call("small", (1,)) == 2
        assert len(lines(served, 1)) == 1
        # The kernel does not complete a large write of a process that is killed meanwhile.
        with (followed / "0.jsonl").open("ab") as file:
            file.write(b'{"time":1.5,"call')
        served.kill_interface()
        served.ready()
        assert served.gate().call("small", (2,)) == 3
        assert [line["arguments"] for line in lines(served, 2)] == [[[1], {}], [[2], {}]]


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_calls_stopped_while_queued_are_recorded_and_leave_no_memory(
    tmp_path: Path, replicas: int
) -> None:
    count = 24
    with serving(SOURCE, record=str(tmp_path / "record"), replicas=replicas) as served:
        served.follow("a")
        gate = served.gate()
        gate.call("double", (np.ones(1 << 18),))
        assert len(lines(served, 1)) == 1

        def call() -> None:
            with pytest.raises(DeadlineExceededError, match="not executed"), deadline(3.0):
                served.gate().call("double", (np.ones(1 << 18),))

        def memfds() -> int:
            """Of arguments; slots for results have another name."""
            names: list[str] = []
            for entry in Path(f"/proc/{served.pid}/fd").iterdir():
                with suppress(OSError):  # closed meanwhile
                    names.append(str(entry.readlink()))
            return sum("memfd" in name and "seer-slot" not in name for name in names)

        with holding(served):
            run_together(call, count)
            # Their memory is released although the call that they waited for still runs.
            assert len(lines(served, count + 1)) == count + 1
            wait_until(lambda: memfds() == 0)
        found = [line for line in lines(served, count + 1) if line["function"] == "double"]
        assert [line["outcome"] for line in found[1:]] == ["DeadlineExceededError"] * count
        assert all(line["run"] == 0 and line["argument_buffers"] for line in found[1:])
        assert len({line["call"] for line in found}) == count + 1
        assert gate.budget()["caller"]["used"]["calls"] == 2


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_a_result_whose_caller_leaves_while_it_is_copied_is_recorded(
    tmp_path: Path, replicas: int
) -> None:
    source = """
        import numpy as np

        @expose
        def large(file: str) -> np.ndarray:
            found = np.full(12_000_000, 3.0)
            open(file, "w").close()
            return found
    """
    times = 5
    with serving(source, record=str(tmp_path / "record"), replicas=replicas) as served:
        followed = served.follow("a")
        path = served.socket_path("a")
        for number in range(times):
            file = tmp_path / f"made-{number}"
            body = json.dumps({"args": [str(file)], "kwargs": {}}).encode()
            with socket.socket(socket.AF_UNIX) as connected:
                connected.connect(str(path))
                connected.sendall(
                    b"POST /v1/call/large HTTP/1.1\r\nseer-gate: 1\r\nseer-accept: shared\r\n"
                    b"content-length: %d\r\n\r\n%s" % (len(body), body)
                )
                wait_until(file.exists)
            # Closed while the gate copies the array into a slot, or just before or after it.
            wait_until(lambda: served.calls() == 0)
            wait_until(lambda: http(path, "GET", "/v1/health")["detached"] == 0)
        assert served.gate().call("large", (str(tmp_path / "last"),)).sum() == 36_000_000.0
        found = lines(served, times + 1)
        assert len(found) == times + 1
        assert found[-1]["outcome"] == "ok"
        assert {line["outcome"] for line in found} <= {"ok", "CallCancelledError"}
        ended = [line for line in found if line["outcome"] == "ok"]
        assert {line["result_buffers"][0]["sha256"] for line in ended} == {
            hashlib.sha256(np.full(12_000_000, 3.0).tobytes()).hexdigest()
        }
        assert served.control("POST", f"/v1/flush/{followed.name}")["lost"] == 0


def test_a_detached_call_is_recorded_once_also_if_the_interface_dies(tmp_path: Path) -> None:
    with serving(SOURCE, record=str(tmp_path / "record")) as served:
        served.follow("a")
        gate = served.gate()
        with pytest.raises(DeadlineExceededError), deadline(1.0):
            gate.call("stubborn", (str(tmp_path / "release"),))
        assert len(lines(served, 1)) == 1
        served.kill_interface()
        (line,) = lines(served, 1)
        assert (line["function"], line["outcome"]) == ("stubborn", "DeadlineExceededError")
        assert line["run"] >= 1.0
        used = served.control("GET", "/v1/budget")["callers"]["a"]
        assert used["calls"] == 1 and used["seconds"] > line["run"]


AT_ONCE = """
    @expose(max_concurrency=4)
    def wait_for(file: str) -> None:
        import os
        import time

        while not os.path.exists(file):
            time.sleep(0.005)

    @expose(max_concurrency=4)
    def small(x: int) -> int:
        return x
"""


@contextmanager
def waiting_call(served: Served) -> Generator[Callable[[], None]]:
    """A call that runs until the function that this gives is called, or the block ends."""
    release = served.folder / f"release-{len(list(served.folder.iterdir()))}"
    gate = served.gate("a")
    with ThreadPoolExecutor(1) as pool:
        before = served.calls()
        running = pool.submit(gate.call, "wait_for", (str(release),))
        wait_until(lambda: served.calls() == before + 1)

        def end() -> None:
            release.touch()
            running.result(timeout=60)

        try:
            yield end
        finally:
            release.touch()


def ended(served: Served, followed: Path) -> tuple[list[str], dict[str, int]]:
    """End the run of a follow: the functions of its calls, and those that still run."""
    told = served.control("POST", f"/v1/flush/{followed.name}", {"last": True})
    return [line["function"] for line in served.recorded(followed)], told["running"]


def unfollow(served: Served, followed: Path) -> None:
    served.control("POST", f"/v1/unfollow/{followed.name}")


@pytest.fixture(params=[1, 2], ids=["one process", "copies"])
def at_once(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Served]:
    callers: dict[str, Any] = {"a": {}, "script-1": {}}
    record = str(tmp_path / "record")
    with serving(AT_ONCE, record=record, callers=callers, replicas=request.param) as served:
        yield served


def test_a_call_belongs_to_the_run_during_which_it_was_made(at_once: Served) -> None:
    first = at_once.follow("a")
    with waiting_call(at_once) as end:
        assert ended(at_once, first) == ([], {"wait_for": 1})
        # Made between two runs, so it belongs to the next one.
        at_once.gate("a").call("small", (1,))
        assert ended(at_once, first) == ([], {"wait_for": 1})
        unfollow(at_once, first)
        second = at_once.follow("a")
        at_once.gate("a").call("small", (2,))
        assert ended(at_once, second) == (["small", "small"], {})
        unfollow(at_once, second)
        third = at_once.follow("a")
        end()
        assert ended(at_once, third) == ([], {})


def request(number: int, padding: bytes = b"") -> bytes:
    """A call of `small`, as bytes."""
    body = b"%s[[%d],{}]" % (padding, number)
    head = b"POST /v1/call/small HTTP/1.1\r\nhost: gate\r\nseer-gate: 1\r\n"
    return b"%sseer-accept: shared\r\ncontent-length: %d\r\n\r\n%s" % (head, len(body), body)


def connected(served: Served, name: str = "a") -> socket.socket:
    """A connection of the caller `a`, or to another socket."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(SOON)
    connection.connect(str(served.socket_path(name)))
    return connection


def ask(served: Served, path: str) -> socket.socket:
    """Ask the control socket to end a run, without waiting for the answer."""
    connection = connected(served, "control")
    head = b"POST %s HTTP/1.1\r\nhost: gate\r\n" % path.encode()
    connection.sendall(head + b'content-length: 14\r\n\r\n{"last": true}')
    return connection


@contextmanager
def asked_while_stopped(served: Served, path: str) -> Generator[None]:
    """While this is open, the process with the callers' sockets is stopped.

    When it continues, the supervisor has just passed on the request `path` of the control socket.
    """
    pid = served.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
        with ask(served, path) as asking:
            # The supervisor answers this only after it has handled what came before.
            assert served.pid == pid
            os.kill(pid, signal.SIGCONT)
            assert read_answer(asking)[0] == 200
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("how", ["flush", "unfollow"])
def test_requests_that_are_unread_when_their_run_ends_are_in_no_later_run(
    at_once: Served, how: str
) -> None:
    first = at_once.follow("a")
    with connected(at_once) as known:
        known.sendall(request(-1))
        read_answer(known)
        with asked_while_stopped(at_once, f"/v1/{how}/{first.name}"):
            # Many, on connections that have yet to be accepted, and with a body of several reads.
            for number in range(100):
                with connected(at_once) as sender:
                    sender.sendall(request(number))
            with connected(at_once) as sender:
                sender.sendall(request(100, b" " * 100_000))
            known.sendall(request(101))
        read_answer(known)
    second = at_once.follow("a")
    assert at_once.recorded(second) == []
    if how == "flush":
        made = [line["arguments"][0][0] for line in at_once.recorded(first)]
        assert sorted(made) == list(range(-1, 102))


def test_unread_requests_to_a_dead_interface_are_in_the_run_that_made_them(tmp_path: Path) -> None:
    # More than the connections without a request that the supervisor keeps open.
    many = 400
    with serving(AT_ONCE, record=str(tmp_path / "record")) as served:
        first = served.follow("a")
        served.kill_interface()
        with ExitStack() as stack:
            senders = [stack.enter_context(connected(served)) for _ in range(10)]
            os.kill(served.process.pid, signal.SIGSTOP)
            try:
                senders += [stack.enter_context(connected(served)) for _ in range(many - 10)]
                for number, sender in enumerate(senders):
                    sender.sendall(request(number))
                asking = stack.enter_context(ask(served, f"/v1/flush/{first.name}"))
            finally:
                os.kill(served.process.pid, signal.SIGCONT)
            assert read_answer(asking)[0] == 200
            for sender in senders:
                assert read_answer(sender)[0] == 503
        second = served.follow("a")
        assert _refused(served.recorded(first)) == many
        assert served.recorded(second) == []


def _refused(lines: list[dict[str, Any]]) -> int:
    """How many refused requests the lines of a record tell of."""
    return sum(1 if line["request"] else int(line["error"].split()[0]) for line in lines)


@pytest.mark.parametrize("begins", ["before", "while loading"])
def test_the_end_of_a_run_is_known_to_an_interface_that_is_loading(
    tmp_path: Path, begins: str
) -> None:
    callers: dict[str, dict[str, float]] = {"a": {}, "script-1": {}}
    with serving(
        SLOW, record=str(tmp_path / "record"), restart="on-failure", callers=callers
    ) as served:
        first = served.follow("a", prefix="script")
        if begins == "while loading":
            unfollow(served, first)
        wait, loading = served.folder / "wait", served.folder / "loading"
        wait.touch()
        os.kill(served.pid, signal.SIGKILL)
        wait_until(loading.exists)
        if begins == "while loading":
            first = served.follow("a", prefix="script")
        served.control("POST", f"/v1/flush/{first.name}", {"last": True})
        with ThreadPoolExecutor(len(callers)) as pool:
            # Made after the end of the run, they wait until the interface has loaded.
            made = [pool.submit(served.gate(name).call, "small", (1,)) for name in callers]
            wait.unlink()
            assert [one.result(timeout=SOON) for one in made] == [2, 2]
        second = served.follow("a", prefix="script")
        assert sorted(line["caller"] for line in served.recorded(second)) == [*callers]
        assert served.recorded(first) == []


def test_a_flood_of_refused_requests_is_counted_in_the_run_that_made_them(at_once: Served) -> None:
    first = at_once.follow("a")
    for _ in range(300):
        with pytest.raises(GateError):
            at_once.gate("a").call("absent", ())
    at_once.control("POST", f"/v1/flush/{first.name}", {"last": True})
    second = at_once.follow("a")
    assert at_once.recorded(second) == []
    found = at_once.recorded(first)
    described = sum(line["outcome"] == "UnknownFunctionError" for line in found)
    counted = sum(int(line["error"].split()[0]) for line in found if not line["request"])
    assert described + counted == 300


def test_a_call_from_before_a_run_is_in_its_record_if_it_ends_in_time(at_once: Served) -> None:
    with waiting_call(at_once) as end:
        followed = at_once.follow("a")
        assert ended(at_once, followed) == ([], {"wait_for": 1})
        end()
    assert ended(at_once, followed) == (["wait_for"], {})


def test_two_runs_that_share_a_session_each_have_the_calls_of_their_time(at_once: Served) -> None:
    first = at_once.follow("a", prefix="script-")
    with waiting_call(at_once) as end:
        second = at_once.follow("a", prefix="script-")
        assert ended(at_once, first) == ([], {"wait_for": 1})
        at_once.gate("a").call("small", (1,))
        at_once.gate("script-1").call("small", (2,))
        end()
        assert ended(at_once, first) == (["wait_for"], {})
        assert [line["caller"] for line in at_once.recorded(second)] == ["a", "script-1"]
        assert ended(at_once, second) == (["small", "small"], {})


def test_a_crash_puts_no_call_of_an_earlier_run_into_a_later_one(tmp_path: Path) -> None:
    callers: dict[str, Any] = {"a": {}}
    record = str(tmp_path / "record")
    with serving(AT_ONCE, record=record, callers=callers, restart="on-failure") as served:
        first = served.follow("a")
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(served.gate("a").call, "wait_for", (str(tmp_path / "never"),))
            wait_until(lambda: served.calls() == 1)
            assert ended(served, first) == ([], {"wait_for": 1})
            unfollow(served, first)
            second = served.follow("a")
            served.kill_interface()
            with pytest.raises(GateError):
                running.result(timeout=60)
        assert ended(served, second) == ([], {})


@pytest.mark.parametrize("how", ["unfollow", "remove"])
@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_a_crash_before_the_interface_hears_of_an_end_misplaces_no_call(
    tmp_path: Path, replicas: int, how: str
) -> None:
    config: dict[str, Any] = {"record": str(tmp_path / "record"), "replicas": replicas}
    with (
        serving(AT_ONCE, **config, restart="on-failure") as served,
        ThreadPoolExecutor(1) as pool,
    ):
        first = served.follow("a")
        running = pool.submit(served.gate("a").call, "wait_for", (str(tmp_path / "never"),))
        wait_until(lambda: served.calls() == 1)
        second, pid = served.follow("a"), served.pid
        os.kill(pid, signal.SIGSTOP)
        ending = {"unfollow": first.name, "remove": "a"}
        with ask(served, f"/v1/{how}/{ending[how]}") as asking:
            assert served.pid == pid  # answered after the request was passed on
            os.kill(pid, signal.SIGKILL)
            assert read_answer(asking)[0] == 200
        with pytest.raises((GateError, OSError)):
            running.result(timeout=SOON)
        assert served.recorded(second) == []
        if how == "remove":
            assert [line["caller"] for line in served.recorded(first)] == ["a"]


def test_a_call_that_a_crash_ends_is_in_the_run_during_which_it_was_made_only(
    tmp_path: Path,
) -> None:
    callers: dict[str, Any] = {"a": {}}
    record = str(tmp_path / "record")
    with serving(AT_ONCE, record=record, callers=callers, restart="on-failure") as served:
        first = served.follow("a")
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(served.gate("a").call, "wait_for", (str(tmp_path / "never"),))
            wait_until(lambda: served.calls() == 1)
            second = served.follow("a")
            served.kill_interface()
            with pytest.raises(GateError):
                running.result(timeout=60)
        assert ended(served, first) == (["wait_for"], {})
        assert ended(served, second) == ([], {})


def test_a_call_that_waited_is_in_the_run_during_which_it_was_made_if_a_crash_ends_it(
    tmp_path: Path,
) -> None:
    source = """
        @expose
        def wait_for(file: str) -> None:
            import os
            import time

            open(file + ".begun", "w").close()
            while not os.path.exists(file):
                time.sleep(0.005)
    """
    release, never = (tmp_path / "release", tmp_path / "never")
    record = str(tmp_path / "record")
    with serving(source, record=record, callers={"a": {}}, restart="on-failure") as served:
        first = served.follow("a")
        with ThreadPoolExecutor(2) as pool:
            before = pool.submit(served.gate("a").call, "wait_for", (str(release),))
            wait_until((tmp_path / "release.begun").exists)
            waiting = pool.submit(served.gate("a").call, "wait_for", (str(never),))
            wait_until(lambda: served.calls() == 2)
            second = served.follow("a")
            release.touch()
            before.result(timeout=60)
            wait_until((tmp_path / "never.begun").exists)
            wait_until(lambda: len(served.recorded(first)) == 1)
            served.kill_interface()
            with pytest.raises(GateError):
                waiting.result(timeout=60)
        assert ended(served, first) == (["wait_for", "wait_for"], {})
        assert ended(served, second) == ([], {})


_LANES = {
    "main thread": "@expose\ndef wait(file: str) -> None:\n    _wait(file)\n",
    "threads": "@expose(max_concurrency=2)\ndef wait(file: str) -> None:\n    _wait(file)\n",
    "event loop": (
        "@expose(max_concurrency=2)\nasync def wait(file: str) -> None:\n"
        "    import asyncio\n\n    await asyncio.to_thread(_wait, file)\n"
    ),
    "batches": (
        "@expose(batch=2)\ndef wait(file: list[str]) -> list[None]:\n"
        "    return [_wait(one) for one in file]\n"
    ),
}
_WAIT = """
import os
import time


def _wait(file):
    open(f"{file}.{os.getpid()}.{time.monotonic_ns()}", "w").close()
    while not os.path.exists(file):
        time.sleep(0.005)


"""


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
@pytest.mark.parametrize("lane", _LANES)
def test_every_call_that_waits_when_the_interface_dies_is_recorded_as_lost(
    tmp_path: Path, lane: str, replicas: int
) -> None:
    never = tmp_path / "never"
    config: dict[str, Any] = {"record": str(tmp_path / "record"), "callers": {"a": {}, "b": {}}}
    with serving(_WAIT + _LANES[lane], **config, replicas=replicas, restart="on-failure") as served:
        followed = served.follow("a")
        with ThreadPoolExecutor(20) as pool:
            gates = [served.gate("a") for _ in range(12)] + [served.gate("b") for _ in range(4)]
            calls = [pool.submit(gate.call, "wait", (str(never),)) for gate in gates]
            wait_until(lambda: served.calls() == len(calls))
            wait_until(lambda: bool(list(tmp_path.glob("never.*"))))
            served.kill_interface()
            for call in calls:
                with pytest.raises(GateError):
                    call.result(timeout=60)
        served.ready()
        # That the clients have sent them again, with the same ids, is not recorded.
        lost = served.recorded(followed)
        assert [(line["caller"], line["function"], line["outcome"]) for line in lost] == [
            ("a", "wait", "CallLostError")
        ] * 12
        assert len({line["call"] for line in lost}) == 12
        begun = len(list(tmp_path.glob("never.*")))
        assert sum(line["run"] == 0.0 for line in lost) >= 12 - 2 * begun
        assert served.control("POST", f"/v1/flush/{followed.name}")["lost"] == 0


def test_requests_after_the_interface_has_died_are_recorded_as_refused(tmp_path: Path) -> None:
    with serving(AT_ONCE, record=str(tmp_path / "record")) as served:
        followed = served.follow("a")
        gate = served.gate("a")
        assert gate.call("small", (1,)) == 1
        wait_until(lambda: len(served.recorded(followed)) == 1)
        served.kill_interface()
        for number in range(400):
            with pytest.raises(GateError, match="is not running"):
                gate.call("small", (number,))
        _, *refused = served.recorded(followed)
        assert {line["outcome"] for line in refused} == {"InterfaceDiedError", "ProtocolError"}
        first, last = refused[0], refused[-1]
        assert (first["request"], first["refused"]) == ("/v1/call/small", True)
        assert "SIGKILL" in first["error"]
        described = sum(line["outcome"] == "InterfaceDiedError" for line in refused)
        assert described >= 200
        counted = [int(line["error"].split()[0]) for line in refused if not line["request"]]
        assert described + sum(counted) == 400, last


_DIE = """
import os
import signal
import sys


def die_after(lines):
    \"\"\"End this process when this thread has run so many lines more of any code.\"\"\"

    def trace(frame, event, argument):
        nonlocal lines
        lines -= event == "line"
        if lines == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    frame = sys._getframe()
    while frame is not None:
        frame.f_trace = trace
        frame = frame.f_back
    sys.settrace(trace)


"""
_LAST = "def last(lines: int) -> int:\n    die_after(lines)\n    return lines\n"
_ENDINGS = {
    "main thread": f"@expose\n{_LAST}",
    "threads": f"@expose(max_concurrency=2)\n{_LAST}",
}
_IN_FRONT = """
from seer.rpc.replicas._dispatch import Dispatch

answered = Dispatch.answered


def answered_and_dead(self, link, response):
    die_after(link.call.id.count("x"))
    answered(self, link, response)


Dispatch.answered = answered_and_dead
"""


def books(served: Served, followed: Path) -> tuple[int, int]:
    """How many calls are in the record, and how many are missing from it."""
    found = served.recorded(followed)
    return len(found), served.control("POST", f"/v1/flush/{followed.name}")["lost"]


def call_until_the_end(served: Served, call: str, *arguments: int) -> bool:
    """Call `last` by hand and do not retry; returns whether an answer came."""
    body = json.dumps({"args": arguments, "kwargs": {}}).encode()
    head = f"POST /v1/call/last HTTP/1.1\r\nseer-call: {call}\r\ncontent-length: {len(body)}"
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(60)
        connected.connect(str(served.socket_path("a")))
        connected.sendall(head.encode() + b"\r\n\r\n" + body)
        with suppress(ConnectionError):
            return bool(connected.recv(65536))
    return False


@pytest.mark.parametrize(
    "lane", ["main thread", pytest.param("threads", marks=pytest.mark.campaign)]
)
def test_a_call_whose_process_is_killed_anywhere_as_it_ends_is_recorded_or_counted(
    tmp_path: Path, lane: str
) -> None:
    answered: list[bool] = []
    for lines in range(1, 199, 11):
        record = str(tmp_path / f"{lines}")
        with serving(_DIE + _ENDINGS[lane], record=record) as served:
            followed = served.follow("a")
            answered.append(call_until_the_end(served, "c-1", lines))
            assert sum(books(served, followed)) == 1, lines
            assert served.control("GET", "/v1/budget")["callers"]["a"]["calls"] == 1
    # From before the function has returned until after the answer was sent.
    assert not answered[0] and answered[-1]


def test_a_call_whose_front_is_killed_anywhere_as_it_ends_is_recorded_or_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_DIE + _IN_FRONT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    source = "@expose\ndef last(x: int) -> int:\n    return x\n"
    answered: list[bool] = []
    for lines in range(1, 150, 13):
        record = str(tmp_path / f"{lines}")
        with serving(source, record=record, replicas=2) as served:
            followed = served.follow("a")
            answered.append(call_until_the_end(served, "x" * lines, 1))
            assert sum(books(served, followed)) == 1, lines
    assert not answered[0] and answered[-1]


def test_a_call_that_is_counted_as_missing_is_not_recorded_again_if_it_is_sent_again(
    tmp_path: Path,
) -> None:
    source = _DIE + _ENDINGS["main thread"]
    for lines in range(108, 156, 8):
        with serving(source, record=str(tmp_path / f"{lines}")) as served:
            followed = served.follow("a")
            with suppress(CallLostError):
                served.gate("a").call("last", (lines,))
            assert sum(books(served, followed)) == 1, lines


@pytest.fixture
def many_descriptors() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 10_000:
        pytest.skip(f"needs 10,000 descriptors, and a process may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (10_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def waiting_by_hand(served: Served, count: int, argument: str) -> Generator[None]:
    """Many calls of `wait` by the callers in turn; lost calls are not retried."""
    names = [caller["name"] for caller in served.config["callers"]]
    body = json.dumps({"args": [argument], "kwargs": {}}).encode()
    request = b"POST /v1/call/wait HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    open_sockets: list[socket.socket] = []
    try:
        for number in range(count):
            connected = socket.socket(socket.AF_UNIX)
            open_sockets.append(connected)
            connected.connect(str(served.socket_path(names[number % len(names)])))
            connected.sendall(request)
        wait_until(lambda: served.calls() == count, timeout=120)
        yield
    finally:
        for connected in open_sockets:
            connected.close()


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
@pytest.mark.usefixtures("many_descriptors")
def test_more_waiting_calls_than_can_be_marked_are_counted_as_missing(
    tmp_path: Path, replicas: int
) -> None:
    names = [f"c{number}" for number in range(5)]
    never = tmp_path / "never"
    config: dict[str, Any] = {"record": str(tmp_path / "record"), "replicas": replicas}
    config["callers"] = {name: {} for name in names}
    source = _WAIT + _LANES["main thread"]
    with serving(source, **config, restart="on-failure") as served:
        followed = served.follow(*names)
        with waiting_by_hand(served, 4200, str(never)):
            served.kill_interface()
        told = served.control("POST", f"/v1/flush/{followed.name}")
        found = len(served.recorded(followed))
        # Each copy runs one.
        assert (found, told["lost"]) == (4096 + replicas, 4200 - 4096 - replicas), told


@pytest.mark.parametrize("replicas", [1, 2], ids=["one process", "copies"])
def test_calls_that_a_crash_ends_on_a_full_disk_are_counted_as_missing(
    tmp_path: Path, replicas: int
) -> None:
    source = _WAIT + _LANES["main thread"]
    with (
        small_disk(tmp_path / "small-disk", "100k") as record,
        serving(source, record=record, replicas=replicas, restart="on-failure") as served,
    ):
        followed = served.follow("a")
        with waiting_by_hand(served, 200, f"{tmp_path}/{'./' * 500}never"):
            served.kill_interface()
        told = served.control("POST", f"/v1/flush/{followed.name}")
        found = served.recorded(followed)
        assert "No space left" in told["why"]
        assert 0 < len(found) == 200 - told["lost"]
        assert {line["outcome"] for line in found} == {"CallLostError"}


def test_a_restart_does_not_let_a_run_that_has_ended_have_later_calls(tmp_path: Path) -> None:
    callers: dict[str, Any] = {"a": {}, "script-1": {}}
    record = str(tmp_path / "record")
    with serving(AT_ONCE, record=record, callers=callers, restart="on-failure") as served:
        first, second = (served.follow(name, prefix="script-") for name in ("a", "b"))
        assert ended(served, first) == ([], {})
        served.kill_interface()
        served.ready()
        for name in callers:
            served.gate(name).call("small", (1,))
        assert ended(served, first) == ([], {})
        assert [line["caller"] for line in served.recorded(second)] == ["script-1"]
        third = served.follow("a")
        assert ended(served, third) == (["small"], {})


def test_copies_that_cannot_be_kept_running_leave_a_record_of_the_refused_calls(
    tmp_path: Path,
) -> None:
    source = AT_ONCE + "".join(
        f"\n    {mark}\n    def {name}() -> None:\n        import os\n\n        os._exit(3)\n"
        for mark, name in (("@expose", "leave"), ("@expose(idempotent=True)", "leave_again"))
    )

    def call_until_refused(served: Served) -> None:
        gate = served.gate("a")
        refused = 0
        for number in range(2000):
            try:
                gate.call("leave_again" if number % 2 else "leave")
            except GateError as error:
                # Go on for a while: some of these calls come while the front is being ended.
                refused += "is not running" in str(error)
                if refused == 100:
                    return
        pytest.fail("the copies were started again and again")

    with serving(source, record=str(tmp_path / "record"), replicas=2) as served:
        followed = served.follow("a")
        run_together(lambda: call_until_refused(served), 6)
        told = served.control("POST", f"/v1/flush/{followed.name}")
        assert told["lost"] == 0, told
