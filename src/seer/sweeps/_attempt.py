"""One try at one cell: the experiment's program in a process and a folder of its own."""

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seer.runs import RunIndex
from seer.sweeps._cell import CELL, RESULT, Cell
from seer.sweeps._journal import Attempt, Outcome

_WORDS = 2000
_PR_SET_PDEATHSIG = 1
_GRACE = 20.0
"""Seconds that a program has to end its sandboxes once it is told to stop."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run for each cell."""

    program: Path
    folder: Path
    """The sweep's folder; each cell has one of its own below it."""
    timeout: float | None
    env: Mapping[str, str]


async def attempt(job: Job, cell: Cell, number: int) -> Attempt:
    """Run a cell once, to its end. Cancelling it ends the program first."""
    home = job.folder / "cells" / cell.id / f"attempt-{number}"
    home.mkdir(parents=True, exist_ok=True)
    result = home / "result.json"
    result.unlink(missing_ok=True)
    env = {
        **os.environ,
        **job.env,
        CELL: json.dumps(cell.to_json()),
        RESULT: str(result),
        "SEER_RUNS": str(home / "runs"),
        "SEER_PROGRESS": "off",
    }
    if cell.agent is not None:
        env["SEER_AGENT"] = cell.agent
    began = time.time()
    with (home / "output.txt").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            job.program.name,
            cwd=job.program.parent,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        timed_out = False
        try:
            async with asyncio.timeout(job.timeout):
                code = await process.wait()
        except TimeoutError:
            timed_out = True
            code = await _stop(process)
        except BaseException:
            await asyncio.shield(_stop(process))
            raise
    outcome = _outcome(code, timed_out=timed_out)
    score, values = _reported(result)
    runs = RunIndex(home / "runs").list(limit=1000, descending=False)
    costs = [run.cost_usd for run in runs if run.cost_usd is not None]
    scores = [run.score for run in runs if run.score is not None]
    return Attempt(
        cell_id=cell.id,
        number=number,
        outcome=outcome,
        began=began,
        ended=time.time(),
        where=f"{socket.gethostname()}:{process.pid}",
        # What the program reports counts; else what its last run was given.
        score=score if score is not None or not scores else scores[-1],
        values=values,
        run_ids=tuple(run.run_id for run in runs),
        cost_usd=sum(costs) if costs else None,
        error="" if outcome == "done" else _last_words(home / "output.txt", code),
    )


def _end_with_parent() -> None:
    """In the new process: be interrupted when the sweep is killed, as by Ctrl-C."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def _outcome(code: int, *, timed_out: bool) -> Outcome:
    if timed_out:
        return "timeout"
    if code == 0:
        return "done"
    return "crashed" if code < 0 else "failed"


async def _stop(process: asyncio.subprocess.Process) -> int:
    """Ask the program to end, as Ctrl-C does; past its grace, kill it and what it started."""
    for number, patience in ((signal.SIGINT, _GRACE), (signal.SIGKILL, _GRACE)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            async with asyncio.timeout(patience):
                return await process.wait()
        except TimeoutError:
            continue
    return await process.wait()


def _reported(file: Path) -> tuple[float | None, dict[str, Any]]:
    try:
        data: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        return None, {}
    return data["score"], data["values"]


def _last_words(output: Path, code: int) -> str:
    data = output.read_bytes()[-_WORDS:].decode(errors="replace").strip()
    return f"exit code {code}\n{data}"
