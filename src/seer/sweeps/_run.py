"""Runs a sweep: chooses the next cell, how many run at once, when to retry and when to stop.

This is not a scheduler, because cells are independent. The operating system shares this machine
among their processes, or Ray shares a cluster among its tasks (`_executor`, `_ray`).
"""

import asyncio
import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import sqlite3
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seer._files import replace_file
from seer._redact import Redactor, is_secret_name
from seer._sync import run_sync
from seer.errors import ConfigError, RecordError, SeerError
from seer.runs import Run, RunIndex, RunSummary
from seer.sweeps._cell import CELL, Cell
from seer.sweeps._executor import AttemptSpec, Began, Ended, Executor, Local, Runner
from seer.sweeps._journal import (
    Attempt,
    AttemptOutcome,
    Journal,
    Unfinished,
    attempt_folder,
    kept_attempt,
    read_journal,
    writing,
)
from seer.sweeps._matrix import Matrix
from seer.sweeps._results import FILE, StoppedBy, SweepResult, read_sweep

logger = logging.getLogger(__name__)

_CONTROL = "control.json"
_POLL_INTERVAL = 1.0
"""Seconds between reads of the control file."""
_LEAST = 64 << 10
"""A disk or quota with fewer free bytes counts as full."""
_WORDS = 2000
"""The number of bytes of a program's last output in the error of its attempt."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How many more attempts each kind of failure gets."""

    failed: int = 0
    """The program ended with an error."""
    crashed: int = 1
    """A signal killed the program, for example because memory ran out."""
    timeout: int = 0
    """The program took longer than `timeout`."""
    lost: int = 3
    """The machine of the program is gone, or the sweep itself was killed."""

    def __post_init__(self) -> None:
        for name in ("failed", "crashed", "timeout", "lost"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ConfigError(f"Retry.{name}", value, "must be a whole number, 0 or more")

    def again(self, outcome: AttemptOutcome, before: list[AttemptOutcome]) -> bool:
        """Whether to try again after `outcome`, which came after the attempts `before`."""
        if outcome == "done":
            return False
        return before.count(outcome) < getattr(self, outcome)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a sweep that is running."""

    total: int
    done: int
    failed: int
    """Cells that have used up their attempts."""
    running: tuple[str, ...]
    waiting: int
    """The number of running cells that still wait for resources of the executor."""
    concurrency: int
    cost_usd: float
    budget_usd: float | None
    seconds_left: float | None
    """An estimate from the cells that have ended; None before the first one."""
    retried: int


def run(
    program: str | Path,
    matrix: Matrix,
    *,
    folder: str | Path,
    concurrency: int = 2,
    retry: Retry | None = None,
    timeout: float | None = None,
    budget_usd: float | None = None,
    env: Mapping[str, str] | None = None,
    on: Executor | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> SweepResult:
    """Run every cell of a matrix that has no result yet.

    To continue a sweep after a crash or Ctrl-C, call this again with the same folder. It does not
    run finished cells again. Cells that were running when the sweep ended count as lost.

    Args:
        program: The experiment's program. It runs once per cell, in the folder that contains it.
        matrix: The cells.
        folder: The sweep's folder, for the journal and all results.
        concurrency: How many cells run at once; `set_concurrency` changes it during the sweep.
        retry: How often to retry, by kind of failure.
        timeout: The time limit of one attempt in seconds.
        budget_usd: The most that the whole sweep may cost; above it, no further cell starts.
        env: Variables to add to the program's environment, which is that of this process or of the
            Ray worker.
        on: Where cells run: `Ray(...)`, or by default `Local()`, this machine.
        on_progress: Called whenever something changes, and about once a second.

    Raises:
        ConfigError: An argument is wrong, the folder holds another sweep, or another process is
            running this sweep.
        MissingExtraError: The sweep should run on Ray, and Ray is not installed.
        ProviderError: The cluster cannot be reached, or is gone.
        RecordError: The folder cannot be written, for example because the disk is full. Results of
            finished cells are kept.
    """
    return run_sync(
        arun(
            program,
            matrix,
            folder=folder,
            concurrency=concurrency,
            retry=retry,
            timeout=timeout,
            budget_usd=budget_usd,
            env=env,
            on=on,
            on_progress=on_progress,
        )
    )


async def arun(
    program: str | Path,
    matrix: Matrix,
    *,
    folder: str | Path,
    concurrency: int = 2,
    retry: Retry | None = None,
    timeout: float | None = None,
    budget_usd: float | None = None,
    env: Mapping[str, str] | None = None,
    on: Executor | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> SweepResult:
    """Like `run`, for a running event loop."""
    file, where = _paths(program, folder)
    set_concurrency(where, concurrency)
    with _exclusive(where), _files_of(where):
        _store_definition(where, file, matrix)
        job = _Job(program=file, folder=where, timeout=timeout, env=dict(env or {}))
        sweep = _Sweep(job, matrix, retry or Retry(), budget_usd, on_progress)
        try:
            async with (on or Local()).opened(file, where) as runner:
                stopped = await sweep.run(runner)
        finally:
            sweep.close()
    return replace(read_sweep(where), stopped=stopped)


def _paths(program: str | Path, folder: str | Path) -> tuple[Path, Path]:
    file = Path(program).absolute()
    if not file.is_file():
        raise ConfigError("program", str(program), "is not a file")
    where = Path(folder).absolute()
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("folder", str(folder), f"cannot be created: {error}") from error
    return file, where


def set_concurrency(folder: str | Path, concurrency: int) -> None:
    """Change how many cells run at once, also in a sweep that another process is running.

    With 0, running cells finish and no new cell starts.

    Raises:
        ConfigError: `concurrency` is not a whole number of 0 or more, or the folder does not exist.
    """
    if type(concurrency) is not int or concurrency < 0:
        raise ConfigError("concurrency", concurrency, "must be a whole number, 0 or more")
    target = Path(folder) / _CONTROL
    try:
        replace_file(target, json.dumps({"concurrency": concurrency}))
    except OSError as error:
        raise ConfigError("folder", str(folder), f"cannot be written: {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What to run for each cell."""

    program: Path
    folder: Path
    """The sweep's folder, which has a folder for each cell."""
    timeout: float | None
    env: Mapping[str, str]
    """Variables to add to the executor's own environment."""


class _Sweep:
    """The run of one sweep."""

    def __init__(
        self,
        job: _Job,
        matrix: Matrix,
        retry: Retry,
        budget_usd: float | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._job = job
        self._retry = retry
        self._budget = budget_usd
        self._on_progress = on_progress
        self._cells = matrix.cells()
        self._before: dict[str, list[AttemptOutcome]] = {cell.id: [] for cell in self._cells}
        self._running: dict[asyncio.Task[tuple[Unfinished, Ended]], Cell] = {}
        self._placed: set[str] = set()
        self._cost = 0.0
        self._took: list[float] = []
        ended, unfinished = read_journal(job.folder)
        for found in ended:
            self._count(found)
        self._journal = Journal(job.folder)
        for left in unfinished:
            self._end(kept_attempt(job.folder, left) or self._collect(left, _lost(left)))
        self._queue = deque(cell for cell in self._cells if self._is_due(cell))

    def _count(self, found: Attempt) -> None:
        self._before.setdefault(found.cell_id, []).append(found.outcome)
        self._cost += found.cost_usd or 0.0
        if found.outcome == "done":
            self._took.append(found.seconds)

    def _is_due(self, cell: Cell) -> bool:
        before = self._before[cell.id]
        return not before or self._retry.again(before[-1], before[:-1])

    async def run(self, runner: Runner) -> StoppedBy:
        """Run until no cell is due. Returns why it stopped earlier, if it did."""
        try:
            while self._queue or self._running:
                if self._over_budget and not self._running:
                    return "budget"
                self._start(runner)
                self._say()
                if not self._running:
                    await asyncio.sleep(_POLL_INTERVAL)
                    continue
                ended, _ = await asyncio.wait(
                    self._running, timeout=_POLL_INTERVAL, return_when=asyncio.FIRST_COMPLETED
                )
                for task in ended:
                    self._take(task)
                for cell in self._running.values():
                    self._link(cell.id, len(self._before[cell.id]) + 1)
        finally:
            # After Ctrl-C or an error, nothing needs the results of cells that still run.
            await self._cancel()
        self._say()
        return ""

    @property
    def _over_budget(self) -> bool:
        return self._budget is not None and self._cost >= self._budget

    def _start(self, runner: Runner) -> None:
        while self._queue and len(self._running) < self._concurrency and not self._over_budget:
            cell = self._queue.popleft()
            number = len(self._before[cell.id]) + 1
            new = Unfinished(cell_id=cell.id, number=number, began=time.time())
            self._journal.begin(cell.id, number, new.began)
            began = functools.partial(self._began, cell.id, number)
            task = asyncio.create_task(_attempt(self._job, runner, new, cell=cell, began=began))
            self._running[task] = cell

    def _began(self, cell_id: str, number: int, where: str) -> None:
        self._journal.placed(cell_id, number, where)
        self._placed.add(cell_id)
        self._say()

    def _take(self, task: asyncio.Task[tuple[Unfinished, Ended]]) -> None:
        cell = self._running.pop(task)
        self._placed.discard(cell.id)
        found = _check_agents(self._collect(*task.result()), cell)
        if found.outcome != "done" and (full := _lack_of_space(self._job.folder)):
            # This is not the program's fault, so the attempt counts as lost.
            self._journal.release()
            self._end(replace(found, outcome="lost", error=f"{found.error}\n{full}"))
            raise RecordError(
                f"{full}. Results of finished cells are kept; free some space and run the same "
                "command again to continue"
            )
        self._end(found)
        if self._is_due(cell):
            # At the end of the queue: a temporary problem of the machine may be over by then.
            self._queue.append(cell)

    def _collect(self, ended: Unfinished, how: Ended) -> Attempt:
        try:
            return _collect_results(self._job, ended, how)
        except RecordError:
            self._journal.release()
            return _collect_results(self._job, ended, how)

    def _link(self, cell_id: str, number: int) -> None:
        """Link the runs of an attempt into the sweep's `runs` folder."""
        shown = self._job.folder / "runs"
        for record in attempt_folder(self._job.folder, cell_id, number).glob("runs/*/run.json"):
            folder = record.parent
            with contextlib.suppress(FileExistsError):
                shown.mkdir(exist_ok=True)
                (shown / folder.name).symlink_to(os.path.relpath(folder, shown))

    def _end(self, found: Attempt) -> None:
        self._link(found.cell_id, found.number)
        self._journal.end(found)
        self._count(found)
        if found.outcome != "done":
            logger.warning("%s: attempt %d %s", found.cell_id, found.number, found.outcome)

    async def _cancel(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    @property
    def _concurrency(self) -> int:
        data: dict[str, int] = json.loads((self._job.folder / _CONTROL).read_text())
        return data["concurrency"]

    def _say(self) -> None:
        if self._on_progress is None:
            return
        outcomes = [outcomes[-1] for outcomes in self._before.values() if outcomes]
        waiting = len(self._queue)
        done = outcomes.count("done")
        at_once = max(self._concurrency, 1)
        typical = statistics.median(self._took) if self._took else None
        left = (waiting + len(self._running) / 2) / at_once
        self._on_progress(
            Progress(
                total=len(self._cells),
                done=done,
                failed=len(self._cells) - done - waiting - len(self._running),
                running=tuple(cell.id for cell in self._running.values()),
                waiting=len(self._running) - len(self._placed),
                concurrency=self._concurrency,
                cost_usd=self._cost,
                budget_usd=self._budget,
                seconds_left=None if typical is None else typical * left,
                retried=sum(max(len(found) - 1, 0) for found in self._before.values()),
            )
        )

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()


async def _attempt(
    job: _Job, runner: Runner, unfinished: Unfinished, *, cell: Cell, began: Began
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

    spec = AttemptSpec(program=job.program, home=home, env=env, timeout=job.timeout)
    how = await runner(spec, begun)
    return replace(unfinished, began=started), how


def _collect_results(job: _Job, unfinished: Unfinished, how: Ended) -> Attempt:
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


def _check_agents(found: Attempt, cell: Cell) -> Attempt:
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
        with output.open("rb") as file:
            # Only the end: a program may have written more than fits into memory.
            file.seek(max(0, file.seek(0, os.SEEK_END) - _WORDS))
            return file.read(_WORDS).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


@contextlib.contextmanager
def _files_of(folder: Path) -> Generator[None]:
    """Raise a `RecordError` where a file of the sweep cannot be read or written."""
    try:
        yield
    except OSError as error:
        if isinstance(error, SeerError) or not str(error.filename or "").startswith(str(folder)):
            raise
        with writing(folder):
            raise


def _lack_of_space(folder: Path) -> str:
    """Why nothing can be written to a folder; empty if it can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            os.posix_fallocate(probe.fileno(), 0, _LEAST)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return f"the disk of {str(folder)!r} is full"
        if error.errno == errno.EDQUOT:
            return f"your disk quota for {str(folder)!r} is used up"
    return ""


def _lost(left: Unfinished) -> Ended:
    return Ended(outcome="lost", where=left.where, error="the sweep ended before this attempt")


@contextlib.contextmanager
def _exclusive(folder: Path) -> Generator[None]:
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "folder", str(folder), "another process is running this sweep"
            ) from None
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _store_definition(folder: Path, program: Path, matrix: Matrix) -> None:
    """Write the program and the matrix to the folder, or check that the matrix is the same."""
    data = {"program": str(program), "matrix": matrix.to_json()}
    file = folder / FILE
    if not file.exists():
        replace_file(file, json.dumps(data, indent=2))
        return
    if json.loads(file.read_text())["matrix"] != data["matrix"]:
        raise ConfigError(
            "folder",
            str(folder),
            "already has a sweep with a different matrix; choose another folder",
        )
