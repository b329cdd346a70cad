"""Ends a sandbox or session in steps. Every step is tried, and a failed end can be repeated."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from seer.errors import EndingError

EndStep = Callable[[], Awaitable[None]]


class Ending:
    """Ends something once, however many callers ask for it.

    Callers that ask during an attempt wait for that attempt. A caller that is cancelled stops
    waiting, and the attempt continues. After a failed attempt, the next call starts a new one.
    """

    def __init__(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Create it without ending anything yet.

        Args:
            end: Ends everything that still exists; called again after a failure.
        """
        self._end = end
        self._attempt: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Start an attempt, or wait for the one that runs. Raises what the attempt raises."""
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.create_task(self._end())
            # Retrieves the exception, in case every caller was cancelled and none reads it.
            self._attempt.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._attempt)


async def run_all(what: str, steps: Iterable[EndStep]) -> None:
    """Run every step, even after one has failed.

    Raises:
        EndingError: Several steps failed. A single failure is raised unchanged.
    """
    failures: list[Exception] = []
    for step in steps:
        try:
            await step()
        except Exception as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        told = "; ".join(f"{type(error).__name__}: {error}" for error in failures)
        raise EndingError(f"{what} did not end cleanly: {told}", failures)
