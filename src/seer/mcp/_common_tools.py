"""Tools that every session's server has: results by id, whole output, interrupt, restart."""

from __future__ import annotations

from seer.execution import Session
from seer.mcp._tools import Caller, Tool, ToolFailure, ToolResult, typed_tool
from seer.mcp._waiting import PATIENCE, Progress, render, wait_for


def common_tools(session: Session) -> list[Tool]:
    """The tools that do not depend on what kind of session it is."""

    async def get_result(
        caller: Caller, result_id: str | None = None, wait: float = PATIENCE
    ) -> ToolResult:
        """Get the result of earlier work, waiting for it when it still runs.

        Results of finished work stay available, so nothing is lost when a call took too long.

        Args:
            result_id: As an earlier call gave it, such as "e7"; by default the latest.
            wait: Seconds to wait at most.
        """
        if result_id is None:
            latest = await session.aresult_ids()
            if not latest:
                raise ToolFailure("nothing has run yet")
            result_id = latest[-1]
        result = await wait_for(
            session,
            result_id,
            wait=checked_wait(wait),
            caller=caller,
            progress=Progress(),
            interrupts=False,
        )
        return render(result)

    async def read_output(result_id: str, offset: int = 0, length: int = 20_000) -> ToolResult:
        """Read a part of everything that earlier work printed, also what was left out.

        Args:
            result_id: As an earlier call gave it.
            offset: Where to begin, in bytes.
            length: How many bytes to read.
        """
        text = await session.aread_output(result_id, offset=offset, length=length)
        return ToolResult(text=text or "[no more output]")

    async def interrupt(result_id: str | None = None) -> ToolResult:
        """Stop what is running.

        Args:
            result_id: Which work to stop; by default what runs now.
        """
        stopped = await session.ainterrupt(result_id)
        return ToolResult(text="interrupted" if stopped else "nothing was running")

    async def restart() -> ToolResult:
        """Begin afresh: everything that was in memory is gone, files stay."""
        await session.arestart()
        return ToolResult(text="restarted; everything that was in memory is gone")

    return [
        typed_tool(get_result, read_only=True),
        typed_tool(read_output, read_only=True),
        typed_tool(interrupt),
        typed_tool(restart),
    ]


def checked_wait(wait: float) -> float:
    """The number of seconds, if a client may wait that long."""
    if not 0 <= wait <= 86_400:
        raise ToolFailure(f"wait={wait!r}: must be 0 to 86400 seconds")
    return wait
