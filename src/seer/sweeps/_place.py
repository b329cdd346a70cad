"""Where attempts run: the one seam between a sweep and processes here, or tasks on a Ray cluster.

A place is a description that a user writes; opened for one sweep it gives a runner, which carries
out orders. It decides nothing about cells: what is tried, how often and when is the sweep's, and
what a program is and how it ends is the guard's (`_guard.py`), the same wherever it runs.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seer.sweeps._cell import RESULT
from seer.sweeps._journal import Outcome

GUARD = Path(__file__).with_name("_guard.py")
GRACE = 20.0
"""Seconds that a program has to end its sandboxes once it is told to stop."""
_PATHS = {RESULT: "result.json", "SEER_RUNS": "runs"}
"""Variables that name something in the attempt's folder, wherever that lies."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """One attempt, as whoever runs it needs to know it."""

    program: Path
    home: Path
    """The attempt's own folder: in the end it holds all that came of it."""
    env: Mapping[str, str]
    """What the program's environment has beside that of the place where it runs."""
    timeout: float | None

    def to_guard(self) -> dict[str, Any]:
        """The order, as the guard reads it."""
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

    outcome: Outcome
    where: str = ""
    error: str = ""
    """What there is to say of it beside the program's own last words."""


Began = Callable[[str], None]
"""Called once the program runs, with the host and the process there."""


class Runner(Protocol):
    """Carries out orders of one sweep, several at a time."""

    async def __call__(self, order: Order, began: Began, /) -> Ended:
        """Run a program to its end. Cancelling this ends the program first.

        Raises:
            ConfigError: No attempt can work like this.
            ProviderError: The place as a whole is gone.
        """
        ...


class Place(Protocol):
    """Where a sweep's attempts run."""

    def opened(self, program: Path, folder: Path) -> AbstractAsyncContextManager[Runner]:
        """Make ready for a sweep of `program` that is kept in `folder`.

        Raises:
            ConfigError: The place cannot be as it is described.
            MissingExtraError: It needs something that is not installed.
            ProviderError: It cannot be reached.
        """
        ...


def ended(report: Mapping[str, Any] | None, where: str) -> Ended:
    """How an attempt ended, by the guard's last line; None where there is none."""
    if report is None:
        return Ended(outcome="lost", where=where, error="the process that guarded it was killed")
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


async def to_its_end(work: Coroutine[Any, Any, object]) -> None:
    """Await something that must end, also when this is cancelled meanwhile."""
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
