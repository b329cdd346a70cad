"""What an agent can call: Python, shell and notebook tools of sessions, and served functions.

A tool knows nothing about protocols or vendors: `seer.mcp` serves tools to other programs, and
`seer.harness` calls them in this process.
"""

from seer.tools._tool import (
    Tool,
    ToolContext,
    ToolFailure,
    ToolOutput,
    ToolSet,
    typed_tool,
)

__all__ = [
    "Tool",
    "ToolContext",
    "ToolFailure",
    "ToolOutput",
    "ToolSet",
    "typed_tool",
]
