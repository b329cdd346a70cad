"""What an agent can call: Python, shell and notebook tools of sessions, and served functions.

A tool knows nothing of protocols or vendors: `seer.mcp` serves tools to programs outside, and
`seer.harness` calls them in this process.
"""

from seer.tools._functions import FunctionTools
from seer.tools._sets import (
    ServedInterface,
    interface_tools,
    loading_tools,
    save_for,
    session_tools,
)
from seer.tools._tool import (
    Caller,
    LoadingTools,
    Tool,
    ToolFailure,
    ToolResult,
    ToolSet,
    ToolSource,
    call_tool,
    server_name,
    typed_tool,
)
from seer.tools._values import Save

__all__ = [
    "Caller",
    "FunctionTools",
    "LoadingTools",
    "Save",
    "ServedInterface",
    "Tool",
    "ToolFailure",
    "ToolResult",
    "ToolSet",
    "ToolSource",
    "call_tool",
    "interface_tools",
    "loading_tools",
    "save_for",
    "server_name",
    "session_tools",
    "typed_tool",
]
