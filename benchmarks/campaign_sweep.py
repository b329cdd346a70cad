"""Sweeps of scripted agents on a Ray cluster of three nodes; a node, then the sweep is killed.

    python benchmarks/campaign_sweep.py                   # 200 cells twice, writes results/sweep.md
    python benchmarks/campaign_sweep.py --cells 20 --dry

Every cell is a program of its own that drives a scripted agent and keeps its record. In the first
sweep, a node is killed when two fifths of the cells are done. In the second, the sweep's own
process is killed with SIGKILL, and the sweep is started again. Each time, every cell must have
exactly one result, finished cells must not run again, and the record must say what was lost and
where.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import RESULTS, header, machine, table, versions
from seer.runs import RunIndex
from seer.sweeps import Matrix, Progress, Ray, SweepResult, read_sweep, run
from tests.support.ray_cluster import RayCluster

PROGRAM = """
import asyncio
from seer.harness import RunFinished, Scripted, Step, run_agent
from seer.sweeps import current_cell, report

cell = current_cell()
with open("began.txt", "a") as file:
    file.write(cell.id + chr(10))


async def main():
    script = Scripted([Step(text=f"the seed is {cell.seed}", usage={"input_tokens": 9})])
    async for event in run_agent(prompt="Say the seed.", mcp_config={}, provider=script):
        if isinstance(event, RunFinished):
            report(score=float(event.result == f"the seed is {cell.seed}"))


asyncio.run(main())
"""
TOOLS = ("none", "probes", "steering", "all")
AT_ONCE = 6
DOOMED = 2
"""The node to kill."""


def matrix(cells: int) -> Matrix:
    """A matrix with this many cells, in paired seeds."""
    return Matrix(tools=TOOLS, seeds=cells // len(TOOLS))


def experiment(folder: Path) -> Path:
    """A folder with the program."""
    folder.mkdir()
    (folder / "main.py").write_text(PROGRAM)
    return folder / "main.py"


def check(sweep: SweepResult, program: Path, done_before: set[str]) -> list[str]:
    """What is wrong with a finished sweep."""
    wrong: list[str] = []
    done = Counter(a.cell_id for a in sweep.attempts if a.outcome == "done")
    wrong += [f"{cell.id}: {done[cell.id]} results" for cell in sweep.cells if done[cell.id] != 1]
    wrong += [f"{a.cell_id}: {a.outcome}" for a in sweep.attempts if a.outcome not in KINDS]
    wrong += [f"{a.cell_id}: score {a.score}" for a in sweep.last().values() if a.score != 1.0]
    began = Counter((program.parent / "began.txt").read_text().split())
    wrong += [f"{cell}: done, and run again" for cell in done_before if began[cell] != 1]
    for attempt in sweep.attempts:
        home = sweep.folder / "cells" / attempt.cell_id / f"attempt-{attempt.number}"
        if attempt.outcome == "done" and RunIndex(home / "runs").count() != 1:
            wrong.append(f"{attempt.cell_id}: its record is not there")
    return wrong


KINDS = ("done", "lost")


def with_a_node_killed(
    folder: Path, cells: int, cluster: RayCluster
) -> tuple[list[str], list[list[str]]]:
    """The first sweep: what is wrong, and its rows."""
    program = experiment(folder / "first")
    done_before: set[str] = set()
    killed_at: list[float] = []

    def kill(now: Progress) -> None:
        if killed_at or now.done < cells * 2 // 5:
            return
        journal = read_sweep(folder / "sweep-1")
        done_before.update(a.cell_id for a in journal.attempts if a.outcome == "done")
        killed_at.append(time.time())
        cluster.kill_node(DOOMED)

    began = time.perf_counter()
    sweep = run(
        program,
        matrix(cells),
        folder=folder / "sweep-1",
        concurrency=AT_ONCE,
        on=Ray(),
        on_progress=kill,
    )
    seconds = time.perf_counter() - began
    wrong = check(sweep, program, done_before)
    name = f"/{cluster.nodes[DOOMED].id[:8]}:"
    lost = [a for a in sweep.attempts if a.outcome == "lost"]
    wrong += [f"{a.cell_id}: lost at {a.where!r}" for a in lost if name not in a.where]
    wrong += [
        f"{a.cell_id}: ran on the node that was dead"
        for a in sweep.attempts
        if name in a.where and a.began > killed_at[0] + 1 and a.outcome == "done"
    ]
    if not lost:
        wrong.append("no attempt was lost with the node")
    return wrong, rows(sweep, seconds, lost_to="the killed node")


def with_the_sweep_killed(folder: Path, cells: int) -> tuple[list[str], list[list[str]]]:
    """The second sweep: what is wrong, and its rows."""
    program = experiment(folder / "second")
    where = folder / "sweep-2"
    began = time.perf_counter()
    command = [sys.executable, __file__, "--cells", str(cells), "--only", str(program), str(where)]
    process = subprocess.Popen(command)
    while not where.joinpath("sweep.json").exists() or read_sweep(where).done < cells * 2 // 5:
        if process.poll() is not None:
            return ["the sweep ended by itself"], []
        time.sleep(0.2)
    process.kill()
    process.wait()
    done_before = {a.cell_id for a in read_sweep(where).attempts if a.outcome == "done"}
    sweep = run(program, matrix(cells), folder=where, concurrency=AT_ONCE, on=Ray())
    seconds = time.perf_counter() - began
    wrong = check(sweep, program, done_before)
    if not any(a.outcome == "lost" for a in sweep.attempts):
        wrong.append("no attempt was lost with the sweep")
    return wrong, rows(sweep, seconds, lost_to="the killed sweep")


def rows(sweep: SweepResult, seconds: float, *, lost_to: str) -> list[list[str]]:
    """The table's rows for a sweep."""
    attempts = sweep.attempts
    lost = [a for a in attempts if a.outcome == "lost"]
    nodes = Counter(a.where.rpartition(":")[0] for a in attempts if a.outcome == "done")
    again = sorted({a.cell_id for a in attempts if a.number > 1})
    return [
        ["cells", str(len(sweep.cells))],
        ["cells with one result", str(sweep.done)],
        ["attempts", str(len(attempts))],
        [f"attempts lost with {lost_to}", str(len(lost))],
        ["results per node", ", ".join(str(count) for _, count in nodes.most_common())],
        ["cells that were retried", ", ".join(again)],
        ["seconds", f"{seconds:.0f}"],
    ]


def main() -> int:
    """Run both sweeps; the status says whether every cell has one result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--dry", action="store_true", help="print only")
    parser.add_argument("--only", nargs=2, metavar=("PROGRAM", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        program, folder = options.only
        run(program, matrix(options.cells), folder=folder, concurrency=AT_ONCE, on=Ray())
        return 0
    where = machine()
    with (
        tempfile.TemporaryDirectory(prefix="seer-campaign-") as name,
        RayCluster(nodes=3, cpus=2) as cluster,
    ):
        os.environ.update(cluster.environment)
        # The second sweep runs first, because it needs all three nodes.
        second = with_the_sweep_killed(Path(name), options.cells)
        first = with_a_node_killed(Path(name), options.cells, cluster)
    page = "\n".join(
        [
            header("Sweeps on Ray", versions(Path(sys.executable), ("ray",)), where),
            f"A Ray cluster of three nodes on this machine, {AT_ONCE} cells at once; every cell is "
            "a program that drives a scripted agent and keeps its record.",
            "",
            "## A node is killed in the middle",
            "",
            table(["", "count"], first[1]),
            "## The sweep's own process is killed in the middle, and started again",
            "",
            table(["", "count"], second[1]),
            *(first[0] + second[0] or ["Nothing ran twice that was done; nothing is missing."]),
        ]
    )
    print(page)
    if not options.dry:
        (RESULTS / "sweep.md").write_text(page.rstrip() + "\n")
    return 1 if first[0] or second[0] else 0


if __name__ == "__main__":
    sys.exit(main())
