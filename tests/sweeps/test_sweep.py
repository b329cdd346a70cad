"""Sweeps of small programs: each cell once, also through crashes."""

import importlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from seer.errors import ConfigError
from seer.sweeps import Matrix, Progress, Retry, plot, read_sweep, run, set_concurrency, summarize

pytestmark = pytest.mark.full

PROGRAM = """
import os, sys, time
from pathlib import Path
from seer.sweeps import current_cell, report

cell = current_cell()
with open("began.txt", "a") as file:
    file.write(cell.id + chr(10))
if cell.tools == "broken":
    sys.exit("the experiment is wrong")
if cell.tools == "killed":
    os.kill(os.getpid(), 9)
if cell.tools == "slow":
    time.sleep(600)
if cell.tools == "gated":
    Path("gate-" + str(os.getpid())).touch()
    while not Path("open").exists():
        time.sleep(0.02)
report(score=float((cell.seed + len(cell.agent or "")) % 2), seed=cell.seed)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "main.py").write_text(PROGRAM)
    return folder / "main.py"


def began(program: Path) -> list[str]:
    return (program.parent / "began.txt").read_text().split()


def test_every_cell_runs_once_and_is_in_the_table(program: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    matrix = Matrix(agents=["a", "bb"], seeds=[1, 2, 3])
    sweep = run(program, matrix, folder=tmp_path / "s", concurrency=3, on_progress=seen.append)
    assert sweep.done == 6 and sweep.stopped == ""
    assert sorted(began(program)) == sorted(cell.id for cell in matrix.cells())
    table = sweep.to_csv(tmp_path / "t.csv").read_text()
    assert table.count("\n") == 7 and "value.seed" in table
    assert seen[-1].done == seen[-1].total == 6
    found = summarize(sweep)
    assert [(group.n, group.mean) for group in found.groups] == [(3, 1 / 3), (3, 2 / 3)]
    assert found.groups[0].method == "Wilson" and found.groups[0].low > 0
    assert [(d.axis, d.better, d.pairs) for d in found.differences] == [("agent", "bb", 3)]
    for ending in ("png", "svg"):
        assert plot(found, tmp_path / f"p.{ending}", title="two agents").stat().st_size > 1000


def test_the_table_is_written_as_parquet(program: Path, tmp_path: Path) -> None:
    sweep = run(program, Matrix(seeds=2), folder=tmp_path / "s")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    table = parquet.read_table(sweep.to_parquet(tmp_path / "t.parquet"))
    assert table.column("outcome").to_pylist() == ["done", "done"]


def test_failures_are_retried_by_their_kind(program: Path, tmp_path: Path) -> None:
    matrix = Matrix(tools=["broken", "killed", "fine"])
    sweep = run(program, matrix, folder=tmp_path / "s", retry=Retry(failed=0, crashed=2))
    rows = {row["tools"]: row for row in sweep.rows()}
    assert (rows["broken"]["outcome"], rows["broken"]["attempts"]) == ("failed", 1)
    assert (rows["killed"]["outcome"], rows["killed"]["attempts"]) == ("crashed", 3)
    assert (rows["fine"]["outcome"], rows["fine"]["attempts"]) == ("done", 1)
    assert "the experiment is wrong" in rows["broken"]["error"]
    again = run(program, matrix, folder=tmp_path / "s", retry=Retry(failed=0, crashed=2))
    assert again.attempts == sweep.attempts  # nothing was due


def test_a_cell_that_takes_too_long_is_ended(program: Path, tmp_path: Path) -> None:
    sweep = run(program, Matrix(tools=["slow"]), folder=tmp_path / "s", timeout=2.0)
    (attempt,) = sweep.attempts
    assert attempt.outcome == "timeout"
    pid = int(attempt.where.rpartition(":")[2])
    assert not Path(f"/proc/{pid}").exists()


def test_a_killed_sweep_goes_on_and_runs_nothing_twice_that_was_done(
    program: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    code = (
        "import sys; from seer.sweeps import Matrix, run;"
        "run(sys.argv[1], Matrix(agents=['a', 'b', 'c', 'd'], tools=['fine', 'gated']),"
        " folder=sys.argv[2], concurrency=3)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(program), str(folder)])
    deadline = time.monotonic() + 60
    while len(list(program.parent.glob("gate-*"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = [int(gate.name.partition("-")[2]) for gate in program.parent.glob("gate-*")]
    _until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in left))
    (program.parent / "open").touch()
    with (folder / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"end": {"cell_')  # as a crash in the middle of a line leaves it
    done_before = {a.cell_id for a in read_sweep(folder).attempts if a.outcome == "done"}
    matrix = Matrix(agents=["a", "b", "c", "d"], tools=["fine", "gated"])
    sweep = run(program, matrix, folder=folder, concurrency=3)
    assert sweep.done == 8
    assert {a.outcome for a in sweep.attempts} == {"done", "lost"}
    runs = began(program)
    assert all(runs.count(cell_id) == 1 for cell_id in done_before)
    assert sum(a.outcome == "lost" for a in sweep.attempts) == 3


def test_concurrency_changes_while_it_runs(program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    seen: list[Progress] = []
    matrix = Matrix(tools=["gated"], seeds=4)
    results: list[object] = []
    thread = threading.Thread(
        target=lambda: results.append(
            run(program, matrix, folder=folder, concurrency=1, on_progress=seen.append)
        )
    )
    thread.start()
    _until(lambda: any(len(p.running) == 1 for p in seen))
    set_concurrency(folder, 4)
    _until(lambda: any(len(p.running) == 4 for p in seen))
    with pytest.raises(ConfigError, match="another process is running this sweep"):
        run(program, matrix, folder=folder, concurrency=4)
    (program.parent / "open").touch()
    thread.join(60)
    assert read_sweep(folder).done == 4
    with pytest.raises(ConfigError, match="another matrix"):
        run(program, Matrix(seeds=2), folder=folder)


def _until(condition: "object", seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_budget_in_dollars_stops_the_sweep(program: Path, tmp_path: Path) -> None:
    program.write_text(
        "from seer.runs import RunRecord, new_run_id, runs_root\n"
        "record = RunRecord.create(runs_root(), new_run_id(), meta={'provider': 'x'})\n"
        "record.close('completed', {'cost_usd': 0.4, 'score': 1.0})\n"
    )
    folder = tmp_path / "s"
    sweep = run(program, Matrix(seeds=10), folder=folder, concurrency=1, budget_usd=1.0)
    assert sweep.stopped == "budget"
    assert len(sweep.attempts) == 3 and sweep.cost_usd == pytest.approx(1.2)
    assert sweep.attempts[0].score == 1.0  # from the run's own record
    meta = json.loads((folder / "sweep.json").read_text())
    assert meta["matrix"]["seeds"] == 10
