"""Wait for a session's work as long as a client is likely to be patient, and tell of progress."""

from __future__ import annotations

import asyncio
import time

from seer.execution import ExecutionResult, Output, Session, StreamText
from seer.mcp._tools import Caller, ToolResult

PATIENCE = 55.0
"""Seconds; several clients give up after sixty."""
_KEEP_ALIVE = 1.0
_PAUSE = 0.5
"""Seconds between two messages about output."""


class Progress:
    """Notes what an execution prints, for messages to the client."""

    def __init__(self) -> None:
        self._last = ""
        self.news = asyncio.Event()

    def __call__(self, output: Output) -> None:
        """Take a piece of output."""
        if isinstance(output, StreamText):
            self._last = (self._last + output.text)[-400:]
            self.news.set()

    @property
    def message(self) -> str:
        """The last line that was printed."""
        lines = [line for line in self._last.replace("\r", "\n").split("\n") if line.strip()]
        return lines[-1].strip()[:200] if lines else ""


async def wait_for(
    session: Session,
    result_id: str,
    *,
    wait: float,
    caller: Caller,
    progress: Progress,
    interrupts: bool = True,
) -> ExecutionResult:
    """The result once it is there, or how it stands after `wait` seconds.

    A client that cancels the call interrupts the work, unless it only asked for its result.
    """
    try:
        return await _wait_and_report(session, result_id, wait, caller, progress)
    except asyncio.CancelledError:
        if interrupts:
            await asyncio.shield(session.ainterrupt(result_id))
        raise


async def _wait_and_report(
    session: Session, result_id: str, wait: float, caller: Caller, progress: Progress
) -> ExecutionResult:
    start = time.monotonic()
    if not caller.wants_progress:
        return await session.aresult(result_id, wait=wait)
    while True:
        left = wait - (time.monotonic() - start)
        step = min(_PAUSE if progress.news.is_set() else _KEEP_ALIVE, max(left, 0.0))
        progress.news.clear()
        result = await _wait_step(session, result_id, step, progress)
        if result.status not in ("queued", "running") or left <= 0:
            return result
        await caller.report(time.monotonic() - start, progress.message)


async def _wait_step(
    session: Session, result_id: str, step: float, progress: Progress
) -> ExecutionResult:
    """Wait for the end, for `step` seconds, or for output after a quiet time."""
    ended = asyncio.create_task(session.aresult(result_id, wait=step))
    news = asyncio.create_task(progress.news.wait())
    try:
        await asyncio.wait([ended, news], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return ended.result()
        await asyncio.wait([ended], timeout=_PAUSE)
        return await (ended if ended.done() else session.aresult(result_id))
    finally:
        for task in (ended, news):
            task.cancel()


def render(result: ExecutionResult, *, failed: bool | None = None) -> ToolResult:
    """A result as an agent is shown it.

    All of it is text and images: clients that find structured content show a model nothing else.
    """
    cell = f"[cell {result.extra['cell_id']}]\n" if result.extra.get("cell_id") else ""
    if result.status in ("queued", "running"):
        head = (
            f"[{result.status}; {result.duration:.0f} s so far. It goes on; "
            f"get_result(result_id={result.result_id!r}) waits for it.]\n"
        )
        return ToolResult(text=head + cell + result.text, images=result.images)
    text = result.text
    if result.exit_code:
        text += (
            "" if text.endswith("\n") or not text else "\n"
        ) + f"[exit code {result.exit_code}]"
    if not text.strip():
        text = f"[done in {result.duration:.2f} s, no output]"
    bad = not result.ok if failed is None else failed
    return ToolResult(text=cell + text, images=result.images, failed=bad)
