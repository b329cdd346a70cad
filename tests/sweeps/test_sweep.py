"""Sweeps of small programs: each cell runs once, also after crashes."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from seer.runs import RunIndex
from seer.sweeps import Matrix, Progress, plot, run, summarize

pytestmark = pytest.mark.full


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


def test_each_result_is_by_the_cells_agent_also_where_the_program_made_another(
    program: Path, tmp_path: Path
) -> None:
    agents: list[str] = []
    for name in ("one", "two"):
        steps = tmp_path / f"{name}.toml"
        steps.write_text(f'[[steps]]\ntext = "I am {name}"\n')
        agents.append(f"scripted:{steps}")
    sweep = run(program, Matrix(agents=agents, tools=["agent"]), folder=tmp_path / "s")
    assert [(row["agent"], row["ran"]) for row in sweep.rows()] == [(a, a) for a in agents]
    said: list[str] = []
    for attempt in sorted(sweep.attempts, key=lambda found: found.agents):
        home = sweep.folder / "cells" / attempt.cell_id / "attempt-1"
        (found,) = RunIndex(home / "runs").list()
        said.append(found.result)
        assert found.score == attempt.score
    assert said == ["I am one", "I am two"]


def test_a_cell_in_which_another_agent_ran_has_failed(tmp_path: Path) -> None:
    program = tmp_path / "main.py"
    program.write_text(
        "import asyncio, os\n"
        "from seer.harness import Scripted, Step, run_agent\n"
        "from seer.sweeps import report\n"
        "del os.environ['SEER_AGENT']\n"
        "async def look():\n"
        "    async for event in run_agent('x', {}, provider=Scripted([Step(text='hello')])):\n"
        "        pass\n"
        "asyncio.run(look())\n"
        "report(score=1.0)\n"
    )
    sweep = run(program, Matrix(agents=["human"]), folder=tmp_path / "s")
    (row,) = sweep.rows()
    assert (row["outcome"], row["score"], row["ran"]) == ("failed", None, "scripted")
    assert "the cell's agent is 'human', but the program ran scripted" in row["error"]
