"""End something in steps: every step is tried, and an end that failed can be repeated."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from seer.errors import EndingError

Step = Callable[[], Awaitable[None]]


class Ending:
    """One way to end something, shared by all who ask for it.

    Those who ask while it runs wait for the same attempt. A caller that is cancelled stops
    waiting; the attempt goes on. After one that failed, asking again starts another.
    """

    def __init__(self, end: Callable[[], Awaitable[None]]) -> None:
        """Describe it.

        Args:
            end: Ends what is still there; called again after a failure.
        """
        self._end = end
        self._attempt: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """End it, or wait for the attempt that runs; raises what the attempt raises."""
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.create_task(self._run())
            # A caller that was cancelled does not look at the result.
            self._attempt.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._attempt)

    async def _run(self) -> None:
        await self._end()


async def run_all(what: str, steps: Iterable[Step]) -> None:
    """Run every step, also after one that failed.

    Raises:
        EndingError: Several failed; a single failure is raised as it is.
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
        raise EndingError(f"{what} did not end in order: {told}", failures)
