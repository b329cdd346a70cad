"""The tools of a cli session: shell commands, background jobs, interactive programs."""

from __future__ import annotations

from functools import partial

from seer.execution import CliSession
from seer.execution.shell._pseudo_terminal import PseudoTerminal
from seer.tools._session import PATIENCE, check_wait, common_tools, render, run
from seer.tools._tool import Tool, ToolContext, ToolOutput, typed_tool


def shell_tools(session: CliSession) -> list[Tool]:
    """The tools of `session`."""

    async def shell(
        context: ToolContext, command: str, wait: float = PATIENCE, background: bool = False
    ) -> ToolOutput:
        """Run a shell command (bash) and get its output and exit code.

        The folder, variables and functions last from one command to the next.

        Args:
            command: The command to run.
            wait: Seconds to wait for its end. A command that takes longer goes on running, and
                get_result gives its result later.
            background: Run it beside other commands and return at once.
        """
        if background:
            result_id = await session.astart_job(command)
            return render(await session.aresult(result_id, wait=0.2))
        result = await run(session, partial(session.asubmit, command), wait, context)
        # A nonzero exit code does not always mean that a command failed.
        return render(result, failed=result.status == "died")

    async def list_jobs() -> ToolOutput:
        """List the background jobs of this session."""
        jobs = await session.ajobs()
        lines = [f"{job.result_id}: {job.status}, {job.duration:.0f} s" for job in jobs]
        return ToolOutput(text="\n".join(lines) or "no background jobs")

    async def terminal_open(command: str = "bash", wait: float = 1.0) -> ToolOutput:
        """Start an interactive program on a terminal, and get what it shows first.

        Args:
            command: The program to start.
            wait: Seconds to wait for it to show something.
        """
        check_wait(wait)
        return await _look(await session.aopen_terminal(command), wait)

    async def terminal_write(terminal_id: str, text: str, wait: float = 1.0) -> ToolOutput:
        """Type into a terminal, and get what the program shows then.

        Args:
            terminal_id: As terminal_open gave it.
            text: What to type; end a line with a newline, Ctrl-C is the character U+0003.
            wait: Seconds to wait for the program to show something.
        """
        check_wait(wait)
        terminal = session.terminal(terminal_id)
        await terminal.awrite(text.replace("\n", "\r"))
        return await _look(terminal, wait)

    async def terminal_read(terminal_id: str, wait: float = 1.0) -> ToolOutput:
        """Get what the program on a terminal has shown since the last look.

        Args:
            terminal_id: As terminal_open gave it.
            wait: Seconds to wait for it to show something.
        """
        check_wait(wait)
        return await _look(session.terminal(terminal_id), wait)

    async def terminal_close(terminal_id: str) -> ToolOutput:
        """End the program on a terminal.

        Args:
            terminal_id: As terminal_open gave it.
        """
        await session.terminal(terminal_id).aclose()
        return ToolOutput(text="closed")

    functions = [shell, terminal_open, terminal_write, terminal_read, terminal_close]
    return [
        *(typed_tool(function) for function in functions),
        typed_tool(list_jobs, read_only=True),
        *common_tools(session),
    ]


async def _look(terminal: PseudoTerminal, wait: float) -> ToolOutput:
    text = await terminal.aread(wait=min(wait, PATIENCE))
    ended = terminal.exit_code
    state = "running" if ended is None else f"ended with exit code {ended}"
    return ToolOutput(text=f"{text}\n[terminal {terminal.terminal_id}: {state}]")
