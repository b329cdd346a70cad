"""The record of a run: complete, chained, free of secrets, and readable after a crash."""

import base64
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer.errors import RecordError, RunNotFoundError
from seer.runs import Run, RunRecord, new_run_id, open_run, runs_root

SECRET = 'hf_"quoted"/and+odd=é0123456789'


def make(root: Path, **meta: Any) -> RunRecord:
    return RunRecord.create(root, new_run_id(), meta=meta, secrets=[SECRET])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record = make(tmp_path, name="first")
    events = [{"type": "text", "text": f"line {n}", "seq": n} for n in range(100)]
    for event in events:
        record.event(event)
    record.call({"function": "f", "arguments": [1, 2]})
    record.close("completed", {"turns": 3})
    run = Run(record.folder)
    assert list(run.events()) == events
    assert list(run.calls()) == [{"function": "f", "arguments": [1, 2]}]
    assert (run.status, run.meta["turns"], run.meta["events"]) == ("completed", 3, 100)
    run.verify()


def write_run_json(root: Path, **content: Any) -> Run:
    folder = root / new_run_id()
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"format": 1, **content}))
    return Run(folder)


def test_a_record_of_an_older_version_opens_and_keeps_what_is_not_known(tmp_path: Path) -> None:
    run = write_run_json(tmp_path, status="completed", task="look", model=None, hue="green")
    info = run.info
    assert (info.task, info.model, info.turns, info.limits) == ("look", None, None, {})
    run.set_score(0.5)
    assert (run.info.score, run.meta["hue"]) == (0.5, "green")
    assert "ended" not in run.meta


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created", "yesterday"),
        ("status", "done"),
        ("turns", "3"),
        ("limits", [1]),
        ("fork_of", ["only an id"]),
        ("writer", {"pid": "1"}),
    ],
)
def test_a_field_of_the_wrong_type_is_named(tmp_path: Path, field: str, value: object) -> None:
    run = write_run_json(tmp_path, **{"status": "completed", field: value})
    with pytest.raises(RecordError, match="pid" if field == "writer" else field):
        _ = run.info


def test_large_and_binary_values_become_blobs_and_come_back(tmp_path: Path) -> None:
    record = make(tmp_path)
    image = {"type": "image", "encoding": "base64", "data": base64.b64encode(bytes(9000)).decode()}
    event = {"text": "x" * 100_000, "nested": [{"image": image}], "again": "x" * 100_000}
    record.event(event)
    record.close("completed")
    assert list(Run(record.folder).events()) == [event]
    assert (record.folder / "events.jsonl").stat().st_size < 1000
    blobs = [path for path in (record.folder / "blobs").rglob("*") if path.is_file()]
    assert sorted(path.stat().st_size for path in blobs) == [9000, 100_000]


def test_a_value_cannot_pose_as_a_blob(tmp_path: Path) -> None:
    record = make(tmp_path)
    known = record.blob(b"something else of this run")
    hostile = {"$blob": known, "bytes": 3, "$$x": {"$blob": "../../etc/passwd"}}
    record.event(hostile)
    record.close("completed")
    assert list(Run(record.folder).events()) == [hostile]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(["$blob", "encoding", "data"]), inner)
    ),
    max_leaves=20,
)


@given(event=st.dictionaries(st.text(), JSON))
@settings(max_examples=12, deadline=None)
def test_any_json_survives(tmp_path_factory: pytest.TempPathFactory, event: Any) -> None:
    record = RunRecord.create(tmp_path_factory.mktemp("runs"), new_run_id(), meta={})
    record.event(event)
    record.close("completed")
    assert list(Run(record.folder).events()) == [event]


def test_lone_surrogates_in_an_output_survive(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.event({"text": "a\ud800b"})
    record.event({"text": "\udfff" * 10_000})
    record.close("completed")
    assert [len(event["text"]) for event in Run(record.folder).events()] == [3, 10_000]


@pytest.mark.parametrize(
    "planted",
    [
        SECRET,
        json.dumps({"token": SECRET}),
        json.dumps({"token": SECRET}, ensure_ascii=False),
        "https://x/?t=hf_%22quoted%22%2Fand%2Bodd%3D%C3%A90123456789",
        base64.b64encode(b"user:" + SECRET.encode()).decode(),
        base64.urlsafe_b64encode(b"a" + SECRET.encode() + b"zz").decode(),
        base64.b64encode(SECRET.encode()).decode(),
    ],
)
def test_secrets_are_in_no_file_in_any_common_form(tmp_path: Path, planted: str) -> None:
    record = make(tmp_path, task=f"use {planted}", env={"TOKEN": planted})
    record.event({"text": planted, planted: [planted], "long": "x" * 9000 + planted})
    record.event({"encoding": "base64", "data": planted})
    record.call({"arguments": {"a": planted}})
    record.close("error", {"message": planted})
    core = SECRET[4:10]
    for path in record.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert planted.encode() not in data, path
            assert core.encode() not in data, path


@pytest.mark.parametrize("change", ["edit", "remove", "insert", "swap"])
def test_a_changed_record_is_noticed(tmp_path: Path, change: str) -> None:
    record = make(tmp_path)
    for number in range(5):
        record.event({"n": number})
    record.close("completed")
    path = record.folder / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "edit":
        lines[2] = lines[2].replace(b'"n":2', b'"n":7')
    elif change == "remove":
        del lines[2]
    elif change == "insert":
        lines.insert(2, lines[1])
    else:
        lines[1], lines[2] = lines[2], lines[1]
    path.write_bytes(b"".join(lines))
    with pytest.raises(RecordError, match="changed after it was written"):
        list(Run(record.folder).events())


def test_a_closed_record_that_was_cut_short_is_noticed(tmp_path: Path) -> None:
    record = make(tmp_path)
    for number in range(5):
        record.event({"n": number})
    record.close("completed")
    path = record.folder / "events.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert len(list(Run(record.folder).events())) == 3
    with pytest.raises(RecordError, match="holds 3 lines, 5 were written"):
        Run(record.folder).verify()


@pytest.mark.parametrize("name", ["events", "calls"])
def test_a_last_line_that_was_written_anew_is_noticed(tmp_path: Path, name: str) -> None:
    record = make(tmp_path)
    other = RunRecord.create(tmp_path, new_run_id(), meta={})
    for number in range(3):
        for one in (record, other):
            item = {"n": number if one is record else min(number, 1)}
            one.event(item)
            one.call(item)
    record.close("completed")
    # Its chain holds, and it has as many lines.
    shutil.copy(other.folder / f"{name}.jsonl", record.folder / f"{name}.jsonl")
    other.close("completed")
    with pytest.raises(RecordError, match=rf"{name}\.jsonl: its last line is not the one that was"):
        Run(record.folder).verify()


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOSPC, "the disk is full: 1 events"),
        (errno.EDQUOT, "your disk quota is used up: 1 events"),
        (errno.EROFS, "the disk is now read-only: 1 events"),
        (errno.EIO, r"its record cannot be written \(\[Errno 5\] .*\): 1 events"),
    ],
)
def test_a_record_that_cannot_grow_says_why_and_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, why: str
) -> None:
    record = make(tmp_path)
    record.event({"n": 1})

    def fail(fd: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        with pytest.raises(RecordError, match=why) as raised:
            record.event({"n": 2})
    assert str(raised.value).endswith("then start the program again")
    assert "\n" not in str(raised.value)
    record.close("error")
    assert list(Run(record.folder).events()) == [{"n": 1}]
    Run(record.folder).verify()


def test_a_line_that_fits_only_in_part_is_not_kept(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from seer.errors import RecordError\n"
        "from seer.runs import RunRecord\n"
        "record = RunRecord.create(Path(sys.argv[1]), 'a-run', meta={})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n"
        "    while True:\n"
        "        record.event({'text': 'x' * 3000})\n"
        "except RecordError as error:\n"
        "    print(error)\n"
        "record.event({'text': 'y'})\n"
        "record.close('error')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert "File too large" in done.stdout, done.stderr
    run = Run(tmp_path / "a-run")
    run.verify()
    assert [len(event["text"]) for event in run.events()] == [3000] * 6 + [1]


def test_a_record_whose_folder_was_removed_does_not_bring_it_back(tmp_path: Path) -> None:
    record = make(tmp_path)
    shutil.rmtree(record.folder)
    for write in (
        lambda: record.event({"n": 1}),
        lambda: record.event({"text": "x" * 9000}),
        lambda: record.artifact("notebook.ipynb", "{}"),
        lambda: record.close("completed"),
    ):
        with pytest.raises(RecordError, match="was removed or renamed; start the program again"):
            write()
    assert not record.folder.exists()


def test_a_changed_blob_is_noticed(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.event({"text": "x" * 9000})
    record.close("completed")
    blob = next(path for path in (record.folder / "blobs").rglob("*") if path.is_file())
    blob.write_bytes(b"y" * 9000)
    with pytest.raises(RecordError, match="changed after it was written"):
        list(Run(record.folder).events())


def test_every_prefix_of_the_file_opens_up_to_the_last_whole_line(tmp_path: Path) -> None:
    record = make(tmp_path)
    for number in range(3):
        record.event({"n": number})
    record.close("completed")
    path = record.folder / "events.jsonl"
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        found = [event["n"] for event in Run(record.folder).events()]
        assert found == list(range(whole[:length].count(b"\n")))


def test_a_record_that_is_opened_again_goes_on_after_the_torn_line(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.event({"n": 0})
    record.close("completed")
    path = record.folder / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"hash":"torn')
    again = RunRecord(record.folder)
    again.event({"n": 1})
    assert [event["n"] for event in Run(record.folder).events()] == [0, 1]


def test_artifacts_stay_in_the_folder(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.artifact("a/notebook.ipynb", "{}")
    for name in ("../x", "/x", "a/../../x", ""):
        with pytest.raises(RecordError, match="inside the run's folder"):
            record.artifact(name, b"")
    record.close("completed")
    assert Run(record.folder).artifacts() == [Path("a/notebook.ipynb")]


def test_runs_are_found_by_a_part_of_their_id(tmp_path: Path) -> None:
    for run_id in ("20260101-000000-aaaa1111", "20260101-000000-bbbb2222"):
        RunRecord.create(tmp_path, run_id, meta={}).close("completed")
    assert open_run("bbbb2222", tmp_path).run_id.endswith("bbbb2222")
    assert open_run(tmp_path / "20260101-000000-aaaa1111").run_id.endswith("aaaa1111")
    with pytest.raises(RunNotFoundError, match="matches several runs"):
        open_run("20260101", tmp_path)
    with pytest.raises(RunNotFoundError, match="no run 'nope'"):
        open_run("nope", tmp_path)


def test_the_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEER_RUNS", "/somewhere")
    assert runs_root() == Path("/somewhere")
    monkeypatch.delenv("SEER_RUNS")
    assert runs_root() == Path.cwd() / "outputs" / "runs"


WRITER = """
import sys
from pathlib import Path
from seer.runs import RunRecord, new_run_id
record = RunRecord.create(Path(sys.argv[1]), new_run_id(), meta={})
print(record.folder, flush=True)
number = 0
while True:
    record.event({"n": number, "text": "x" * (number % 7 * 2000)})
    record.call({"n": number})
    number += 1
    if number == 50:
        print("enough", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("attempt", range(3))
def test_after_kill_9_the_record_opens_and_says_crashed(tmp_path: Path, attempt: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    with writer.stdout:
        folder = Path(writer.stdout.readline().strip())
        assert Run(folder).status == "running"
        writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    run = Run(folder)
    assert run.status == "crashed"
    numbers = [event["n"] for event in run.events()]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 50
    run.verify()


def test_lines_can_be_followed_from_where_a_reader_left_off(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.event({"type": "text", "text": "x" * 5000, "$odd": 1})
    ((offset, first),) = Run(record.folder).lines("events")
    assert first["text"]["bytes"] == 5000, "large texts stay references"
    assert first["$$odd"] == 1, "nothing in a value can pose as a reference"
    record.event({"type": "text", "text": "later"})
    with (record.folder / "events.jsonl").open("ab") as file:
        file.write(b'{"hash":"torn')
    run = Run(record.folder)
    assert [body["text"] for _, body in run.lines("events", after=offset)] == ["later"]
    assert list(run.lines("calls")) == []
