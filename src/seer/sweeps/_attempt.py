"""One try at one cell: what the program is told, and what came of it."""

import json
import re
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seer._redact import Redactor
from seer.errors import RecordError
from seer.runs import Run, RunIndex, RunSummary
from seer.sweeps._cell import CELL, Cell
from seer.sweeps._journal import Attempt, Unfinished, attempt_folder
from seer.sweeps._place import Began, Ended, Order, Runner

_WORDS = 2000
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run for each cell."""

    program: Path
    folder: Path
    """The sweep's folder; each cell has one of its own below it."""
    timeout: float | None
    env: Mapping[str, str]
    """For the program, beside the environment of the place where it runs."""


async def attempt(
    job: Job, runner: Runner, unfinished: Unfinished, *, cell: Cell, began: Began
) -> tuple[Unfinished, Ended]:
    """Run a cell once, to its end. Cancelling it ends the program first."""
    home = attempt_folder(job.folder, cell.id, unfinished.number)
    (home / "result.json").unlink(missing_ok=True)
    env = {**job.env, CELL: json.dumps(cell.to_json()), "SEER_PROGRESS": "off"}
    if cell.agent is not None:
        env["SEER_AGENT"] = cell.agent
    started = unfinished.began

    def begun(where: str) -> None:
        nonlocal started
        # What it waited for room does not count as its time.
        started = time.time()
        began(where)

    order = Order(program=job.program, home=home, env=env, timeout=job.timeout)
    how = await runner(order, begun)
    return replace(unfinished, began=started), how


def gathered(job: Job, unfinished: Unfinished, how: Ended) -> Attempt:
    """What the folder of an attempt that has ended says of it.

    Raises:
        RecordError: There is no room to look through its records.
    """
    home = attempt_folder(job.folder, unfinished.cell_id, unfinished.number)
    score, values = _reported(home / "result.json") if how.outcome != "lost" else (None, {})
    runs = _runs(home)
    costs = [run.cost_usd for run in runs if run.cost_usd is not None]
    scores = [run.score for run in runs if run.score is not None]
    if score is None and scores and how.outcome != "lost":
        # What the program reports counts; else what its last run was given.
        score = scores[-1]
    elif score is not None and len(runs) == 1 and not scores:
        Run(home / "runs" / runs[0].run_id).set_score(score)
    secrets = [value for name, value in job.env.items() if _SECRET.search(name)]
    parts = [how.error, _last_words(home / "output.txt")]
    if how.outcome == "lost":
        parts.reverse()  # the last line is what tables show
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


def checked(found: Attempt, cell: Cell) -> Attempt:
    """The attempt, failed where other agents ran than the cell's."""
    if found.outcome != "done" or cell.agent is None or not found.agents:
        return found
    if cell.agent in found.agents:
        return found
    error = (
        f"the cell's agent is {cell.agent!r}, but the program ran {', '.join(found.agents)}; "
        "let it use SEER_AGENT, which the sweep sets"
    )
    return replace(found, outcome="failed", score=None, error=error)


def _agents(home: Path, runs: list[RunSummary]) -> tuple[str, ...]:
    """Who ran, each once, in order."""
    metas = (Run(home / "runs" / run.run_id).meta for run in runs)
    return tuple(dict.fromkeys(str(meta.get("agent") or meta["provider"]) for meta in metas))


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
