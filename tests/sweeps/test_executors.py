"""The behaviour of every executor of a sweep, and what a Ray cluster can do to cells."""

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from seer.errors import ConfigError
from seer.runs import RunIndex
from seer.sweeps import (
    Executor,
    Matrix,
    Progress,
    Ray,
    Retry,
    SweepResult,
    arun,
    read_sweep,
    run,
    set_concurrency,
)
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.full
on_ray = pytest.mark.xdist_group("ray")

APART = """
import json, sys
from pathlib import Path
from seer.sweeps import Matrix, Ray, run

folder = Path(sys.argv[1])
(folder / "lab").mkdir()
(folder / "shared").mkdir()
(folder / "shared" / "words.txt").write_text("from beside the program")
(folder / ".env").write_text("LAB_KEY=not-to-be-sent")
(folder / "lab" / "main.py").write_text('''
import os
from pathlib import Path
from seer.runs import RunRecord, new_run_id, runs_root
from seer.sweeps import current_cell, report

root = Path(__file__).parent.parent
print("hidden files:", [p.name for p in root.iterdir() if p.name.startswith(".")])
record = RunRecord.create(runs_root(), new_run_id(), meta={"provider": "x"})
record.close("completed", {"cost_usd": 0.25, "score": 1.0})
if current_cell().tools == "large":
    (runs_root() / "noise").write_bytes(os.urandom(3 << 20))
report(score=1.0, words=(root / "shared" / "words.txt").read_text(), root=str(root))
''')
executor = Ray(source=folder, limit=2 << 20, cpus=0.25)
matrix = Matrix(tools=["small", "large"], seeds=2)
sweep = run(folder / "lab" / "main.py", matrix, folder=folder / "s", concurrency=2, on=executor)
home = folder / "s" / "cells" / sweep.attempts[0].cell_id / "attempt-1"
print(json.dumps({
    "rows": sweep.rows(),
    "cost": sweep.cost_usd,
    "output": [p.read_text() for p in (folder / "s").glob("cells/*/attempt-1/output.txt")],
    "left": sorted(p.name for p in home.parent.iterdir()),
}))
"""


def began(program: Path) -> list[str]:
    """The ids of cells that began, one for each time."""
    return (program.parent / "began.txt").read_text().split()


def until(condition: Callable[[], object], seconds: float = 90) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gates(program: Path) -> list[int]:
    """The processes that have reached the gate."""
    return [int(gate.name.partition("-")[2]) for gate in program.parent.glob("gate-*")]


def all_gone(program: Path, pids: list[int]) -> bool:
    """Whether none of these processes runs the program; others may have got their numbers."""
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cwd").readlink() == program.parent:
                return False
    return True


def test_each_way_of_ending_is_told_and_retried_by_its_kind(
    program: Path, tmp_path: Path, executor: Executor
) -> None:
    matrix = Matrix(tools=["slow", "fine", "broken", "killed", "agent"])
    sweep = run(
        program,
        matrix,
        folder=tmp_path / "s",
        concurrency=3,
        retry=Retry(failed=0, crashed=1),
        timeout=20.0,
        env={"LAB_KEY": "sesame-sesame"},
        on=executor,
    )
    rows = {row["tools"]: row for row in sweep.rows()}
    told = {name: (row["outcome"], row["attempts"]) for name, row in rows.items()}
    assert told == {
        "fine": ("done", 1),
        "broken": ("failed", 1),
        "killed": ("crashed", 2),
        "slow": ("timeout", 1),
        "agent": ("done", 1),
    }
    assert "the experiment is wrong, not [redacted]" in rows["broken"]["error"]
    assert "sesame" not in (tmp_path / "s" / "journal.jsonl").read_text()
    assert all_gone(program, [int(a.where.rpartition(":")[2]) for a in sweep.attempts])
    (agent,) = (a for a in sweep.attempts if "agent" in a.cell_id)
    home = tmp_path / "s" / "cells" / agent.cell_id / "attempt-1"
    assert [found.run_id for found in RunIndex(home / "runs").list()] == list(agent.run_ids)
    assert "no tools" in (home / "output.txt").read_text()
    again = run(program, matrix, folder=tmp_path / "s", retry=Retry(crashed=1))
    assert again.attempts == sweep.attempts  # nothing was due


async def test_an_interrupted_sweep_ends_its_programs_and_goes_on(
    program: Path, tmp_path: Path, executor: Executor
) -> None:
    matrix = Matrix(tools=["gated"], seeds=3)
    sweep = asyncio.create_task(
        arun(program, matrix, folder=tmp_path / "s", concurrency=2, on=executor)
    )
    await asyncio.to_thread(until, lambda: len(gates(program)) == 2)
    assert not all_gone(program, gates(program))
    sweep.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sweep
    assert all_gone(program, gates(program))
    (program.parent / "open").touch()
    found = await arun(program, matrix, folder=tmp_path / "s", concurrency=3, on=executor)
    assert found.done == 3
    assert [a.outcome for a in found.attempts].count("lost") == 2


def test_a_killed_sweep_goes_on_and_runs_nothing_twice_that_was_done(
    program: Path, tmp_path: Path, executor: Executor
) -> None:
    folder = tmp_path / "s"
    code = (
        "import sys; from seer.sweeps import Local, Matrix, Ray, run;"
        "run(sys.argv[1], Matrix(agents=['a', 'b', 'c', 'd'], tools=['fine', 'gated']),"
        f" folder=sys.argv[2], concurrency=3, on={executor!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(program), str(folder)])
    until(lambda: len(gates(program)) == 3 or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = gates(program)
    assert len(left) == 3
    until(lambda: all_gone(program, left))
    (program.parent / "open").touch()
    with (folder / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"end": {"cell_')  # as a crash in the middle of a line leaves it
    done_before = {a.cell_id for a in read_sweep(folder).attempts if a.outcome == "done"}
    matrix = Matrix(agents=["a", "b", "c", "d"], tools=["fine", "gated"])
    sweep = run(program, matrix, folder=folder, concurrency=3, on=executor)
    assert sweep.done == 8
    assert {a.outcome for a in sweep.attempts} == {"done", "lost"}
    runs = began(program)
    assert all(runs.count(cell_id) == 1 for cell_id in done_before)
    lost = {int(a.where.rpartition(":")[2]) for a in sweep.attempts if a.outcome == "lost"}
    assert lost == set(left)  # the journal has each one's node, although no end was reported


def test_concurrency_changes_while_it_runs(
    program: Path, tmp_path: Path, executor: Executor
) -> None:
    folder = tmp_path / "s"
    seen: list[Progress] = []
    matrix = Matrix(tools=["gated"], seeds=4)
    results: list[SweepResult] = []
    thread = threading.Thread(
        target=lambda: results.append(
            run(program, matrix, folder=folder, concurrency=1, on=executor, on_progress=seen.append)
        )
    )
    thread.start()
    until(lambda: any(len(p.running) - p.waiting == 1 for p in seen))
    set_concurrency(folder, 4)
    until(lambda: any(len(p.running) - p.waiting == 4 for p in seen))
    with pytest.raises(ConfigError, match="another process is running this sweep"):
        run(program, matrix, folder=folder, concurrency=4)
    (program.parent / "open").touch()
    thread.join(200)
    assert results[0].done == read_sweep(folder).done == 4
    with pytest.raises(ConfigError, match="a different matrix"):
        run(program, Matrix(seeds=2), folder=folder)


def test_a_budget_in_dollars_stops_the_sweep(
    program: Path, tmp_path: Path, executor: Executor
) -> None:
    program.write_text(
        "from seer.runs import RunRecord, new_run_id, runs_root\n"
        "record = RunRecord.create(runs_root(), new_run_id(), meta={'provider': 'x'})\n"
        "record.close('completed', {'cost_usd': 0.4, 'score': 1.0})\n"
    )
    folder = tmp_path / "s"
    matrix = Matrix(seeds=10)
    sweep = run(program, matrix, folder=folder, concurrency=1, budget_usd=1.0, on=executor)
    assert sweep.stopped == "budget"
    assert len(sweep.attempts) == 3 and sweep.cost_usd == pytest.approx(1.2)
    assert sweep.attempts[0].score == 1.0  # from the run's own record
    meta = json.loads((folder / "sweep.json").read_text())
    assert meta["matrix"]["seeds"] == 10


def read_lines(file: Path) -> list[dict[str, str]]:
    """The whole lines of a journal that is being written."""
    whole = file.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


@on_ray
@pytest.mark.timeout(500)
def test_a_node_dies_and_every_cell_has_one_result(
    program: Path, tmp_path: Path, cluster: RayCluster
) -> None:
    folder = tmp_path / "s"
    killed = threading.Event()
    doomed = cluster.nodes[2].id[:8]

    def watch(now: Progress) -> None:
        placed = [line for line in read_lines(folder / "journal.jsonl") if "placed" in line]
        # The gated cells run until the gate opens, so the node dies with one of them.
        there = [line["placed"] for line in placed if f"/{doomed}:" in line["where"]]
        if any("gated" in cell for cell in there) and now.done >= 2:
            killed.set()

    results: list[SweepResult] = []
    matrix = Matrix(tools=["agent", "gated"], seeds=6)
    thread = threading.Thread(
        target=lambda: results.append(
            run(program, matrix, folder=folder, concurrency=6, on=Ray(cpus=0.5), on_progress=watch)
        )
    )
    thread.start()
    assert killed.wait(200)
    cluster.kill_node(2)
    (program.parent / "open").touch()
    thread.join(200)
    (sweep,) = results
    assert sweep.done == 12
    done = [a.cell_id for a in sweep.attempts if a.outcome == "done"]
    assert len(set(done)) == len(done) == 12
    lost = [a for a in sweep.attempts if a.outcome == "lost"]
    assert lost and all(f"/{doomed}:" in a.where for a in lost)
    assert all("node" in a.error for a in lost)
    later = [a for a in sweep.attempts if a.number > 1]
    assert {a.cell_id for a in later} == {a.cell_id for a in lost}
    assert not any(f"/{doomed}:" in a.where for a in later)


@on_ray
def test_nodes_without_the_folders_get_the_experiment_and_send_everything_back(
    tmp_path: Path, cluster: RayCluster
) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    # A disk that only the sweep sees: to the nodes, the folder is empty.
    how = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    mount = 'mount -t tmpfs none "$1" && exec "$0" -c "$2" "$1"'
    done = subprocess.run(
        [*how, "sh", "-c", mount, sys.executable, str(apart), APART],
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    assert not list(apart.iterdir())
    found = json.loads(done.stdout.splitlines()[-1])
    rows = {(row["tools"], row["repetition"]): row for row in found["rows"]}
    for repetition in (0, 1):
        small, large = rows["small", repetition], rows["large", repetition]
        assert (small["outcome"], small["score"], small["attempts"]) == ("done", 1.0, 1)
        assert small["value.words"] == "from beside the program"
        assert not small["value.root"].startswith(str(apart))
        assert large["outcome"] == "failed"
        assert "too large to be copied back" in large["error"] and "noise" in large["error"]
        kept = re.search(r"stays on the node in '(.+?)'", large["error"])
        assert kept is not None
        # The sweep keeps the folder, so the reader of the message removes it.
        assert (Path(kept[1]) / "output.txt").is_file()
        shutil.rmtree(kept[1])
    assert rows["small", 0]["value.root"] == rows["small", 1]["value.root"]
    assert found["cost"] == pytest.approx(0.5)  # from records that came back
    assert found["output"] == ["hidden files: []\n"] * 2
    assert found["left"] == ["attempt-1"]


@on_ray
def test_a_cell_that_no_node_can_hold_waits_and_says_so(
    program: Path, tmp_path: Path, cluster: RayCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def give_up(now: Progress) -> None:
        if now.waiting:
            raise RuntimeError("seen waiting")

    executor = Ray(gpus=8)
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeError, match="seen waiting"):
        run(program, Matrix(), folder=tmp_path / "s", on=executor, on_progress=give_up)
    assert "no node of the cluster has {'CPU': 1.0, 'GPU': 8}" in caplog.text


@on_ray
def test_a_cluster_that_cannot_be_meant_is_named(
    program: Path, tmp_path: Path, cluster: RayCluster
) -> None:
    with pytest.raises(
        ConfigError,
        match=f"process is connected to, {cluster.address}",
    ):
        run(program, Matrix(), folder=tmp_path / "s", on=Ray(address="127.0.0.1:9"))
    with pytest.raises(ConfigError, match="does not contain the program"):
        run(program, Matrix(), folder=tmp_path / "s", on=Ray(source=tmp_path / "s"))
    code = (
        "import sys; from seer.sweeps import Matrix, Ray, run;"
        "run(sys.argv[1], Matrix(), folder=sys.argv[2], on=Ray(address='127.0.0.1:9'))"
    )
    command = [sys.executable, "-c", code, str(program), str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert "ProviderError: could not reach Ray at '127.0.0.1:9'" in done.stderr
