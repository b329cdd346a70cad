"""One attempt at one cell: the program's environment, and the results from its folder."""

import json
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seer._redact import Redactor, is_secret_name
from seer.errors import RecordError
from seer.runs import Run, RunIndex, RunSummary
from seer.sweeps._cell import CELL, Cell
from seer.sweeps._executor import Began, Ended, Order, Runner
from seer.sweeps._journal import Attempt, Unfinished, attempt_folder

_WORDS = 2000


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run for each cell."""

    program: Path
    folder: Path
    """The sweep's folder, which has a folder for each cell."""
    timeout: float | None
    env: Mapping[str, str]
    """Variables to add to the executor's own environment."""


async def attempt(
    job: Job, runner: Runner, unfinished: Unfinished, *, cell: Cell, began: Began
) -> tuple[Unfinished, Ended]:
    """Run a cell once, to its end. Cancelling this ends the program first."""
    home = attempt_folder(job.folder, cell.id, unfinished.number)
    (home / "result.json").unlink(missing_ok=True)
    env = {**job.env, CELL: json.dumps(cell.to_json()), "SEER_PROGRESS": "off"}
    if cell.agent is not None:
        env["SEER_AGENT"] = cell.agent
    started = unfinished.began

    def begun(where: str) -> None:
        nonlocal started
        # The time that it waited for resources does not count.
        started = time.time()
        began(where)

    order = Order(program=job.program, home=home, env=env, timeout=job.timeout)
    how = await runner(order, begun)
    return replace(unfinished, began=started), how


def collect_results(job: Job, unfinished: Unfinished, how: Ended) -> Attempt:
    """Read the results of an attempt from its folder.

    Raises:
        RecordError: Its records cannot be listed, for example because the disk is full.
    """
    home = attempt_folder(job.folder, unfinished.cell_id, unfinished.number)
    score, values = _reported(home / "result.json") if how.outcome != "lost" else (None, {})
    runs = _runs(home)
    costs = [run.cost_usd for run in runs if run.cost_usd is not None]
    scores = [run.score for run in runs if run.score is not None]
    if score is None and scores and how.outcome != "lost":
        # The program reported no score, so the score of its last run counts.
        score = scores[-1]
    elif score is not None and len(runs) == 1 and not scores:
        Run(home / "runs" / runs[0].run_id).set_score(score)
    secrets = [value for name, value in job.env.items() if is_secret_name(name)]
    parts = [how.error, _last_words(home / "output.txt")]
    if how.outcome == "lost":
        parts.reverse()  # tables show the last line
    return Attempt(
        cell_id=unfinished.cell_id,
        number=unfinished.number,
        outcome=how.outcome,
        began=unfinished.began,
        ended=time.time(),
        where=how.where,
        score=score,
        values=values,
        run_ids=tuple(run.run_id for run in runs),
        agents=_agents(home, runs),
        cost_usd=sum(costs) if costs else None,
        error=""
        if how.outcome == "done"
        else Redactor(secrets).redact("\n".join(filter(None, parts))),
    )


def check_agents(found: Attempt, cell: Cell) -> Attempt:
    """Mark the attempt as failed if the program ran only other agents than the cell's."""
    if found.outcome != "done" or cell.agent is None or not found.agents:
        return found
    if cell.agent in found.agents:
        return found
    error = (
        f"the cell's agent is {cell.agent!r}, but the program ran {', '.join(found.agents)}; "
        "use the agent in SEER_AGENT, which the sweep sets"
    )
    return replace(found, outcome="failed", score=None, error=error)


def _agents(home: Path, runs: list[RunSummary]) -> tuple[str, ...]:
    """The agents of the runs, each once, in order."""
    infos = (Run(home / "runs" / run.run_id).info for run in runs)
    return tuple(dict.fromkeys(str(info.agent or info.provider) for info in infos))


def _runs(home: Path) -> list[RunSummary]:
    try:
        return RunIndex(home / "runs").list(limit=1000, descending=False)
    except sqlite3.Error as error:
        raise RecordError(f"the records in {str(home)!r} cannot be listed: {error}") from error


def _reported(file: Path) -> tuple[float | None, dict[str, Any]]:
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, {}
    return data["score"], data["values"]


def _last_words(output: Path) -> str:
    try:
        return output.read_bytes()[-_WORDS:].decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
