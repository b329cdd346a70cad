"""What the tools of every kind of session share: waiting, progress, results by id, restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from seer.errors import SandboxLostError
from seer.execution import ExecutionResult, Session, StreamText
from seer.execution._result import OutputPart
from seer.tools._tool import Tool, ToolContext, ToolFailure, ToolOutput, typed_tool

PATIENCE = 55.0
"""The default wait of tools in seconds; several clients give up after sixty."""
_KEEP_ALIVE = 1.0
_PAUSE = 0.5
"""Seconds between two messages about output."""


class LastLine:
    """Keeps the last line that an execution prints, for progress messages."""

    def __init__(self) -> None:
        self._last = ""
        self.news = asyncio.Event()

    def __call__(self, output: OutputPart) -> None:
        """Add a piece of output."""
        if isinstance(output, StreamText):
            self._last = (self._last + output.text)[-400:]
            self.news.set()

    @property
    def message(self) -> str:
        """The last line that was printed."""
        lines = [line for line in self._last.replace("\r", "\n").split("\n") if line.strip()]
        return lines[-1].strip()[:200] if lines else ""


class _Submit(Protocol):
    """Starts work, and returns the id of its result."""

    def __call__(self, *, on_output: Callable[[OutputPart], None]) -> Awaitable[str]: ...


async def run(
    session: Session, submit: _Submit, wait: float, context: ToolContext
) -> ExecutionResult:
    """The result of new work, or its state after `wait` seconds.

    A client that cancels the call interrupts the work.
    """
    check_wait(wait)
    progress = LastLine()
    result_id = await submit(on_output=progress)
    context.started(f"{session.name!r}: {result_id}", partial(_stop, session, result_id))
    try:
        return await _wait_and_report(session, result_id, wait, context, progress)
    except asyncio.CancelledError:
        await asyncio.shield(session.ainterrupt(result_id))
        raise


async def _stop(session: Session, result_id: str) -> bool:
    """Interrupt work, or kill it if it goes on; returns whether it has ended."""
    try:
        await session.ainterrupt(result_id)
        # Interrupted work that is queued ends when its turn comes, without having run.
        return (await session.aresult(result_id)).status != "running"
    except (LookupError, SandboxLostError):
        return True  # its result was forgotten, or its machine is gone: it does not run


async def _wait_and_report(
    session: Session, result_id: str, wait: float, context: ToolContext, progress: LastLine
) -> ExecutionResult:
    start = time.monotonic()
    if not context.wants_progress:
        return await session.aresult(result_id, wait=wait)
    while True:
        left = wait - (time.monotonic() - start)
        step = min(_PAUSE if progress.news.is_set() else _KEEP_ALIVE, max(left, 0.0))
        progress.news.clear()
        result = await _wait_step(session, result_id, step, progress)
        if result.status not in ("queued", "running") or left <= 0:
            return result
        await context.report(time.monotonic() - start, progress.message)


async def _wait_step(
    session: Session, result_id: str, step: float, progress: LastLine
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


def render(result: ExecutionResult, *, failed: bool | None = None) -> ToolOutput:
    """A result as an agent sees it.

    It has no structured content, because clients would show the model nothing else.
    """
    cell = f"[cell {result.extra['cell_id']}]\n" if result.extra.get("cell_id") else ""
    if result.status in ("queued", "running"):
        head = (
            f"[{result.status}; {result.duration:.0f} s so far. It goes on; "
            f"get_result(result_id={result.result_id!r}) waits for it.]\n"
        )
        return ToolOutput(text=head + cell + result.text, images=result.images)
    text = result.text
    if result.exit_code:
        text += (
            "" if text.endswith("\n") or not text else "\n"
        ) + f"[exit code {result.exit_code}]"
    if not text.strip():
        text = f"[done in {result.duration:.2f} s, no output]"
    bad = not result.ok if failed is None else failed
    return ToolOutput(text=cell + text, images=result.images, failed=bad)


def common_tools(session: Session) -> list[Tool]:
    """The tools that every kind of session has."""

    async def get_result(
        context: ToolContext, result_id: str | None = None, wait: float = PATIENCE
    ) -> ToolOutput:
        """Get the result of earlier work, waiting for it when it still runs.

        Results of finished work stay available, so nothing is lost when a call took too long.

        Args:
            result_id: As an earlier call gave it, such as "e7"; by default the latest.
            wait: Seconds to wait at most.
        """
        check_wait(wait)
        if result_id is None:
            latest = await session.aresult_ids()
            if not latest:
                raise ToolFailure("nothing has run yet")
            result_id = latest[-1]
        # A client that cancels this does not interrupt the work.
        return render(await _wait_and_report(session, result_id, wait, context, LastLine()))

    async def read_output(result_id: str, offset: int = 0, length: int = 20_000) -> ToolOutput:
        """Read a part of everything that earlier work printed, also what was left out.

        Args:
            result_id: As an earlier call gave it.
            offset: Where to begin, in bytes.
            length: How many bytes to read.
        """
        text = await session.aread_output(result_id, offset=offset, length=length)
        return ToolOutput(text=text or "[no more output]")

    async def interrupt(result_id: str | None = None) -> ToolOutput:
        """Stop what is running.

        Args:
            result_id: Which work to stop; by default what runs now.
        """
        stopped = await session.ainterrupt(result_id)
        return ToolOutput(text="interrupted" if stopped else "nothing was running")

    async def restart() -> ToolOutput:
        """Begin afresh: everything that was in memory is gone, files stay."""
        await session.arestart()
        return ToolOutput(text="restarted; everything that was in memory is gone")

    return [
        typed_tool(get_result, read_only=True),
        typed_tool(read_output, read_only=True),
        typed_tool(interrupt),
        typed_tool(restart),
    ]


def check_wait(wait: float) -> None:
    """Check the number of seconds that a client wants to wait, before anything is started.

    Raises:
        ToolFailure: It is negative, or more than a day.
    """
    if not 0 <= wait <= 86_400:
        raise ToolFailure(f"wait={wait!r}: must be 0 to 86400 seconds")
