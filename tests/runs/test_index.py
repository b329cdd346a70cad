"""Finding runs among many."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from seer.errors import ConfigError
from seer.runs import RunFilter, RunIndex, RunRecord, open_run


def write(root: Path, number: int, **meta: Any) -> Path:
    folder = root / f"20260101-{number:06d}-00000000"
    folder.mkdir(parents=True)
    data = {"format": 1, "status": "completed", "created": float(number), "name": "run", **meta}
    (folder / "run.json").write_text(json.dumps(data))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, 1, name="audit 1", provider="claude", task="find the cat", cost_usd=0.5)
    write(tmp_path, 2, name="audit 2", provider="openai", result="it likes zebras", cost_usd=0.1)
    write(tmp_path, 3, name="probe", provider="claude", status="error", model="m-1")
    return tmp_path


def ids(index: RunIndex, **where: Any) -> list[int]:
    return sorted(int(run.created) for run in index.list(RunFilter(**where)))


def test_runs_are_listed_newest_first(root: Path) -> None:
    index = RunIndex(root)
    assert [run.created for run in index.list()] == [3.0, 2.0, 1.0]
    assert [run.created for run in index.list(limit=1, offset=1)] == [2.0]
    assert [run.created for run in index.list(order="cost_usd", limit=2)] == [1.0, 2.0]
    assert index.count() == 3


def test_filters_combine(root: Path) -> None:
    index = RunIndex(root)
    assert ids(index, provider="claude") == [1, 3]
    assert ids(index, provider="claude", status="error") == [3]
    assert ids(index, name="audit*") == [1, 2]
    assert ids(index, name="audit 1") == [1]
    assert ids(index, since=2.0, until=3.0) == [2]
    assert ids(index, model="m-1") == [3]


def test_search_looks_at_all_words(root: Path) -> None:
    index = RunIndex(root)
    assert ids(index, search="zebra") == [2]
    assert ids(index, search="CAT find") == [1]
    assert ids(index, search="cat zebra") == []
    assert ids(index, search="  ") == [1, 2, 3]


@pytest.mark.parametrize("hostile", ['"', "a OR b", "NEAR(", "*", "'; DROP TABLE runs", "col:x"])
def test_nothing_in_a_search_is_syntax(root: Path, hostile: str) -> None:
    assert ids(RunIndex(root), search=hostile) == []
    assert RunIndex(root).count() == 3


def test_the_order_is_checked(root: Path) -> None:
    with pytest.raises(ConfigError, match="order='1; DROP"):
        RunIndex(root).list(order="1; DROP TABLE runs")  # type: ignore[arg-type]


def test_new_changed_and_deleted_runs_are_seen(root: Path) -> None:
    index = RunIndex(root)
    assert index.count() == 3
    folder = write(root, 4, name="new")
    assert ids(index, name="new") == [4]
    (folder / "run.json").write_text(json.dumps({"format": 1, "status": "limit", "created": 4.0}))
    assert ids(index, status="limit") == [4]
    (folder / "run.json").unlink()
    assert index.count() == 3


def test_a_score_that_is_set_after_a_run_is_listed(root: Path) -> None:
    index = RunIndex(root)
    run_id = index.list(limit=1)[0].run_id
    open_run(run_id, root).set_score(0.5)
    assert index.list(limit=1)[0].score == 0.5
    open_run(run_id, root).set_score(cast("float", np.float32(0.25)))
    assert index.list(limit=1)[0].score == 0.25
    for wrong in (float("nan"), "good", None, {"found": 1.0}, 10**400):
        with pytest.raises(ConfigError, match="must be a finite number"):
            open_run(run_id, root).set_score(cast("float", wrong))
    assert index.list(limit=1)[0].score == 0.25


def test_a_damaged_index_is_made_anew(root: Path) -> None:
    assert RunIndex(root).count() == 3
    (root / "index.sqlite").write_bytes(b"this is no database" * 100)
    assert RunIndex(root).count() == 3


@pytest.mark.parametrize("table", ["runs", "words", "words_data"])
def test_an_index_without_one_of_its_tables_is_made_anew(root: Path, table: str) -> None:
    assert RunIndex(root).count() == 3
    with contextlib.closing(sqlite3.connect(root / "index.sqlite")) as db:
        db.execute(f"DROP TABLE {table}")
    write(root, 4, task="a giraffe")
    assert ids(RunIndex(root), search="giraffe") == [4]


def test_an_index_with_text_that_is_no_text_is_made_anew(root: Path) -> None:
    assert RunIndex(root).count() == 3
    with contextlib.closing(sqlite3.connect(root / "index.sqlite")) as db:
        db.execute("UPDATE runs SET stamp = CAST(x'ff' AS TEXT)")
        db.commit()
    assert RunIndex(root).count() == 3


def test_an_index_that_another_process_keeps_is_left_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ids(RunIndex(root)) == [1, 2, 3]
    inode = (root / "index.sqlite").stat().st_ino
    write(root, 4)
    monkeypatch.setattr("seer.runs._index.BUSY", 0.05)
    with contextlib.closing(sqlite3.connect(root / "index.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert ids(RunIndex(root)) == [1, 2, 3, 4]
        other.execute("COMMIT")
    assert (root / "index.sqlite").stat().st_ino == inode
    assert ids(RunIndex(root)) == [1, 2, 3, 4]


def test_an_index_that_cannot_grow_is_left_alone_and_all_runs_are_listed(root: Path) -> None:
    assert RunIndex(root).count() == 3
    size = (root / "index.sqlite").stat().st_size
    (root / "kept").hardlink_to(root / "index.sqlite")
    for number in range(4, 104):
        write(root, number, task=f"unlike {number} " * 1000)
    # A limit on the size of files acts like a full disk: SQLite itself ends the transaction.
    program = (
        "import resource, sys\nfrom seer.runs import RunIndex\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "print(RunIndex(sys.argv[1]).count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(root), str(size + 65_536)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "103\n"), done.stderr[-2000:]
    assert (root / "index.sqlite").samefile(root / "kept")
    assert RunIndex(root).count() == 103


@pytest.mark.full
def test_runs_in_a_folder_that_cannot_be_written_to_are_listed(root: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("only root can mount a folder read-only, with unshare")
    program = "import sys; from seer.runs import RunIndex; print(RunIndex(sys.argv[1]).count())"
    mount = f'mount --bind {root} {root} && mount -o remount,ro,bind {root} && exec "$0" "$@"'
    for _ in range(2):
        done = subprocess.run(
            [unshare, "--mount", "/bin/sh", "-c", mount, sys.executable, "-c", program, str(root)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr[-2000:]
        # Again, with an existing index that cannot be updated.
        RunIndex(root).count()
        data = json.loads((root / "20260101-000001-00000000" / "run.json").read_text())
        (root / "20260101-000001-00000000" / "run.json").write_text(json.dumps({**data, "x": 1}))


@pytest.mark.full
@pytest.mark.parametrize("closed", [".", "run.json"])
def test_runs_that_only_another_user_may_open_do_not_hide_the_others(
    root: Path, closed: str
) -> None:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv")
    (root / "20260101-000001-00000000" / closed).chmod(0)
    program = "import sys; from seer.runs import RunIndex; print(RunIndex(sys.argv[1]).count())"
    # Without these capabilities, even root can only open files as their modes allow.
    drop = [setpriv, "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*drop, sys.executable, "-c", program, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    (root / "20260101-000001-00000000" / closed).chmod(0o700)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr[-2000:]
    assert "left out" in done.stderr


def test_a_damaged_record_is_left_out(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "20260101-000001-00000000" / "run.json").write_text("{")
    assert RunIndex(root).count() == 2
    assert "left out of the index" in caplog.text


def test_a_folder_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert RunIndex(tmp_path / "none").list() == []
    assert not (tmp_path / "none").exists()


def test_a_run_whose_writer_is_gone_is_listed_as_crashed(root: Path) -> None:
    record = RunRecord.create(root, "20260101-000009-00000000", meta={})
    index = RunIndex(root)
    assert [run.status for run in index.list(RunFilter(status="running"))] == ["running"]
    meta = json.loads((record.folder / "run.json").read_text())
    meta["writer"]["start"] -= 1
    (record.folder / "run.json").write_text(json.dumps(meta))
    assert [run.run_id for run in index.list(RunFilter(status="crashed"))] == [record.run_id]
    record.close("completed")


@pytest.mark.full
def test_ten_thousand_runs_answer_well_under_a_second(tmp_path: Path) -> None:
    for number in range(10_000):
        result = "zebra" if number % 9 == 0 else "cat"
        write(tmp_path, number, name=f"exp {number % 50}", result=result, task="find the secret")
    index = RunIndex(tmp_path)
    assert index.count() == 10_000
    for where in (RunFilter(), RunFilter(name="exp 1*"), RunFilter(search="secret zebra")):
        began = time.thread_time()
        assert len(index.list(where)) == 50
        assert time.thread_time() - began < 1.0


def test_a_page_tells_the_total_and_what_there_is_to_filter_by(root: Path) -> None:
    page = RunIndex(root).page(RunFilter(provider="claude"), limit=1)
    assert [run.created for run in page.runs] == [3.0]
    assert page.total == 2
    assert page.choices == {
        "status": ["completed", "error"],
        "provider": ["claude", "openai"],
        "model": ["m-1"],
    }


def test_runs_without_a_value_come_last_in_both_directions(root: Path) -> None:
    write(root, 4, ended=9.0)
    index = RunIndex(root)
    for descending in (True, False):
        assert index.list(order="seconds", descending=descending)[0].seconds == 5.0
        assert index.list(order="cost_usd", descending=descending)[0].cost_usd is not None


def test_texts_that_are_no_unicode_are_found_all_the_same(root: Path) -> None:
    write(root, 5, name="torn \ud83d", result="half a \udc00 character", model="\ud800")
    index = RunIndex(root)
    assert ids(index, search="torn half") == [5]
    assert ids(index, search="\ud83d") == []
    assert index.count(RunFilter(name="torn*")) == 1


def test_a_listing_has_short_reprs(root: Path) -> None:
    index = RunIndex(root)
    first = index.list()[0]
    assert repr(first) == f"<RunSummary {first.run_id}: {first.name}, {first.status}>"
    assert repr(index) == f"<RunIndex of {str(root)!r}>"
