"""The files of a follow: lines in segments; segments that were read are removed."""

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seer.rpc.interface._budget import Budget, Meter, Tally
from seer.rpc.interface._expose import Options
from seer.rpc.server import _follows, _recorder
from seer.rpc.server._callers import Caller
from seer.rpc.server._calls import Call
from seer.rpc.server._config import ServerConfig
from seer.rpc.server._control import Control
from seer.rpc.server._entries import Entry
from seer.rpc.server._execute import bind_fetch, fetch
from seer.rpc.server._follows import (
    ABANDONED,
    Follow,
    LineWriter,
    discard,
    end_of,
    followers,
    read_lines,
    remove_folder,
    segments,
)
from seer.rpc.server._poller import Poller
from seer.rpc.server._recorder import Recorder
from seer.rpc.server._replies import Reply
from seer.rpc.server._shared import Shared
from seer.rpc.server._supervisor import Supervisor
from seer.rpc.wire._http import parse_request
from tests import waiting


def test_lines_go_over_segments_and_those_before_an_offset_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_follows, "SEGMENT", 50)
    folder = str(tmp_path / "follow")
    lines = [b"%03d " % n + b"x" * 20 + b"\n" for n in range(10)]
    first = LineWriter(folder)
    for line in lines[:4]:
        assert first.append([line]) == {}
    first.close()
    # A restarted process continues where the last one ended.
    second = LineWriter(folder)
    assert second.append(lines[4:5]) == {}
    assert second.append(lines[5:]) == {}
    second.close()
    assert end_of(folder) == sum(map(len, lines))
    assert len(segments(folder)) > 2
    found, after = b"", 0
    while data := read_lines(folder, after, 30):
        assert data.endswith(b"\n")
        found += data
        after += len(data)
        discard(folder, after, [])
        assert all(start + 50 + 5 * 25 >= after for start in segments(folder))
    assert found == b"".join(lines)
    remove_folder(folder)
    assert not Path(folder).exists()
    assert (read_lines(folder, 0, 10), end_of(folder), segments(folder)) == (b"", 0, [])


def test_lines_that_do_not_fit_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    (tmp_path / "follow").write_text("a file where the folder should be")
    failed = LineWriter(str(tmp_path / "follow")).append([b"a\n", b"b\n"])
    assert [*failed] == [0, 1]
    assert all(isinstance(error, FileExistsError) for error in failed.values())


def recorder_in(folder: Path, shared: Shared | None = None) -> Recorder:
    """A recorder with a follow `f` of the caller `a`."""
    return Recorder(
        str(folder),
        results=True,
        source_hash="",
        follows={"f": Follow("f", ["a"], "")},
        shared=shared or Shared(),
        notify=lambda message: None,
    )


@pytest.mark.parametrize("limit", ["MAX_CALLS", "MAX_WAITING"])
def test_what_may_wait_for_a_disk_that_hangs_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(_recorder, limit, 10)
    monkeypatch.setattr(_recorder, "SMALL", 10_000 if limit == "MAX_CALLS" else 0)
    monkeypatch.setattr(_recorder, "PAUSE", 0.05)
    (tmp_path / "f").mkdir()
    os.mkfifo(tmp_path / "f" / "0.jsonl")  # opening it waits for a reader
    recorder = recorder_in(tmp_path)
    caller = Caller("a", 0, Meter("", Budget(), Shared().cells, 0))
    begin = time.monotonic()
    for n in range(30):
        recorder.refused(caller, f"/v1/call/{n}", "ProtocolError", "x" * 100)
    # A few more than may wait, because the thread had taken a few before it hung.
    assert time.monotonic() - begin > 5 * 0.05
    read = os.open(tmp_path / "f" / "0.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = threading.Event()
        recorder.flush(done.set)
        assert done.wait(30)
        assert len(os.read(read, 1 << 20).splitlines()) == 30
    finally:
        os.close(read)


@pytest.mark.parametrize("reads", [True, False])
def test_recording_waits_for_a_reader_unless_it_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    monkeypatch.setattr(_recorder, "MAX_BACKLOG", 5000)
    monkeypatch.setattr(_recorder, "STALLED", 30.0 if reads else 0.1)
    recorder = recorder_in(tmp_path)
    caller = Caller("a", 0, Meter("", Budget(), Shared().cells, 0))
    for n in range(100):
        recorder.refused(caller, f"/v1/call/{n}", "ProtocolError", "x" * 100)
    done = threading.Event()
    recorder.flush(done.set)
    if reads:
        waiting.wait_until(lambda: end_of(str(tmp_path / "f")) > 5000, "a backlog")
        assert not done.wait(0.2)
        assert end_of(str(tmp_path / "f")) < 7000
        recorder.taken("f", 1 << 20)
    assert done.wait(30)
    data = read_lines(str(tmp_path / "f"), 0, 1 << 20)
    assert [json.loads(line)["request"] for line in data.splitlines()] == [
        f"/v1/call/{n}" for n in range(100)
    ]


def test_a_kill_while_a_reader_is_awaited_leaves_no_call_uncounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_recorder, "MAX_BACKLOG", 500)
    shared = Shared()
    recorder = recorder_in(tmp_path, shared)
    caller = Caller("a", 0, Meter("", Budget(), Shared().cells, 0))
    for n in range(20):
        recorder.refused(caller, f"/v1/call/{n}", "ProtocolError", "x" * 100)

    def written() -> int:
        return len(read_lines(str(tmp_path / "f"), 0, 1 << 20).splitlines())

    # The thread writes what it has and waits for the reader, with the next line in its hands.
    waiting.wait_until(lambda: written() > 1 and shared.recorded[1] > 0, "a backlog")
    assert shared.recorded[1] == written()
    recorder.taken("f", 1 << 20)
    waiting.wait_until(lambda: shared.recorded[1] == 20, "all lines")
    assert written() == 20


CHUNK = b'{"item":1}\n'


def test_bytes_of_streams_are_counted_exactly_on_several_threads(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    meter = Meter("", Budget(), Shared().cells, 0)
    connection: Any = SimpleNamespace(caller=Caller("a", 0, meter))
    entry = Entry("f", fetch, bind_fetch, Options(), meter)
    head = parse_request(b"POST /v1/call/f HTTP/1.1\r\ncontent-length: 0", max_body=10)
    tally = Tally((meter, meter, meter), 1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def stream(_: int) -> None:
            for _ in range(1500):
                call = Call(connection, entry, head, b"[[],{}]", tally, 0.0)
                call.streaming = True
                for _ in range(20):
                    recorder.item(call, CHUNK)
                recorder.add(call, Reply(200, b"}"), 0.0, 0.0, 0)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(stream, range(4)))
        done = threading.Event()
        recorder.flush(done.set)
        assert done.wait(30)
    finally:
        sys.setswitchinterval(interval)
    assert recorder._streamed == 0  # pyright: ignore[reportPrivateUsage]


def test_a_follow_that_nobody_asks_for_ends(tmp_path: Path) -> None:
    config = ServerConfig(name="i", file="i.py", control="c", record=str(tmp_path))
    supervisor = Supervisor(config)
    control = Control(supervisor, Poller())
    for name, seconds in (("left", ABANDONED + 1), ("asked", 1)):
        (tmp_path / name / "blobs").mkdir(parents=True)
        (tmp_path / name / "0.jsonl").write_text("line\n")
        config.follows[name] = Follow(name, ["a"], "")
        config.follows[name].asked -= seconds
    control.end_abandoned(time.monotonic())
    assert list(config.follows) == ["asked"]
    assert [path.name for path in tmp_path.iterdir()] == ["asked"]


def test_a_caller_is_in_every_follow_that_names_it_and_in_one_that_only_matches() -> None:
    follows = {
        item.id: item
        for item in (
            Follow("one", ["a"], "script-"),
            Follow("two", ["a", "b"], "script-"),
            Follow("three", [], ""),
        )
    }
    assert followers(follows, "a") == ["one", "two"]
    assert followers(follows, "b") == ["two"]
    assert followers(follows, "script-7") == ["one"]
    assert followers(follows, "c") == []
