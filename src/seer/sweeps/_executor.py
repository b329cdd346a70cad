"""Executors: where the attempts of a sweep run. `Local` is this machine; `_ray.py` has `Ray`.

A user describes an executor. A sweep opens it and gets a runner, which runs one program per
attempt. The sweep decides which cells to try, how often and when. `_supervisor.py` starts and ends
a program, in the same way on every executor.
"""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seer.sweeps._cell import RESULT
from seer.sweeps._journal import AttemptOutcome

SUPERVISOR = Path(__file__).with_name("_supervisor.py")
GRACE = 20.0
"""Seconds that a program has to end its sandboxes after it is told to stop."""
_PATHS = {RESULT: "result.json", "SEER_RUNS": "runs"}
"""Environment variables that hold a path, relative to the attempt's folder."""


@dataclass(frozen=True, kw_only=True)
class AttemptSpec:
    """What a runner needs to know about one attempt."""

    program: Path
    home: Path
    """The attempt's own folder, which holds its results at the end."""
    env: Mapping[str, str]
    """Variables to add to the executor's own environment."""
    timeout: float | None

    def to_supervisor(self) -> dict[str, Any]:
        """The same in the form that the supervisor reads."""
        return {
            "program": str(self.program),
            "home": str(self.home),
            "env": dict(self.env),
            "paths": _PATHS,
            "timeout": self.timeout,
            "grace": GRACE,
            "remove": False,
        }


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How an attempt ended."""

    outcome: AttemptOutcome
    where: str = ""
    error: str = ""
    """What went wrong, without the program's output."""


Began = Callable[[str], None]
"""Called when the program has started, with its host and process id."""


class Runner(Protocol):
    """Runs the programs of one sweep, several at a time."""

    async def __call__(self, spec: AttemptSpec, began: Began, /) -> Ended:
        """Run a program to its end. Cancelling this ends the program first.

        Raises:
            ConfigError: No attempt can work with this configuration.
            ProviderError: The whole executor is gone.
        """
        ...


class Executor(Protocol):
    """Where a sweep's attempts run."""

    def opened(self, program: Path, folder: Path) -> AbstractAsyncContextManager[Runner]:
        """Prepare for a sweep of `program` that keeps its results in `folder`.

        Raises:
            ConfigError: The executor's configuration cannot work.
            MissingExtraError: The executor needs a package that is not installed.
            ProviderError: The executor cannot be reached.
        """
        ...


def ended(report: Mapping[str, Any] | None, where: str) -> Ended:
    """How an attempt ended, from the supervisor's last line; None if it wrote none."""
    if report is None:
        return Ended(outcome="lost", where=where, error="its supervisor process was killed")
    if "error" in report:
        return Ended(outcome="failed", where=where, error=report["error"])
    code: int = report["code"]
    if report["timed_out"]:
        return Ended(outcome="timeout", where=where, error=f"exit code {code}")
    if code == 0:
        return Ended(outcome="done", where=where)
    return Ended(
        outcome="crashed" if code < 0 else "failed", where=where, error=f"exit code {code}"
    )


async def finish_uncancelled(work: Coroutine[Any, Any, object]) -> None:
    """Wait until `work` has ended, even if the caller is cancelled; then raise the cancellation."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


@dataclass(frozen=True)
class Local:
    """This machine. Each attempt is a process, and the operating system shares the cores."""

    @asynccontextmanager
    async def opened(self, program: Path, folder: Path) -> AsyncGenerator[Runner]:
        """See `Executor`."""
        yield _run


async def _run(spec: AttemptSpec, began: Began) -> Ended:
    supervisor = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(SUPERVISOR)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert supervisor.stdin is not None and supervisor.stdout is not None
    where = socket.gethostname()
    report: dict[str, Any] | None = None
    try:
        supervisor.stdin.write(json.dumps(spec.to_supervisor()).encode() + b"\n")
        async for line in supervisor.stdout:
            message: dict[str, Any] = json.loads(line)
            if "pid" in message:
                where = f"{socket.gethostname()}:{message['pid']}"
                began(where)
            else:
                report = message
    finally:
        supervisor.stdin.close()
        # The supervisor ends after the program.
        await finish_uncancelled(supervisor.wait())
    return ended(report, where)
