"""The tools of a local session: Python in a persistent kernel."""

from __future__ import annotations

from functools import partial

from seer.execution import LocalSession
from seer.tools._session import PATIENCE, common_tools, render, run
from seer.tools._tool import Tool, ToolContext, ToolOutput, typed_tool


def python_tools(session: LocalSession) -> list[Tool]:
    """The tools of `session`."""

    async def python(context: ToolContext, code: str, wait: float = PATIENCE) -> ToolOutput:
        """Run Python code in a persistent IPython kernel and get what it prints and displays.

        Variables, imports and functions last from one call to the next. The value of the last
        expression is shown, plots and images too.

        Args:
            code: The code to run.
            wait: Seconds to wait for its end. Code that takes longer goes on running, and
                get_result gives its result later.
        """
        return render(await run(session, partial(session.asubmit, code), wait, context))

    return [typed_tool(python), *common_tools(session)]
