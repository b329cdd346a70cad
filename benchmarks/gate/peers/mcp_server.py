"""A bare tool server of the official SDK on standard input and output."""

from __future__ import annotations

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from benchmarks.gate import _work

server = MCPServer("bench")


@server.tool()
def small(x: int) -> int:
    """See `_work`."""
    return _work.small(x)


@server.tool()
def floats(n: int) -> list[float]:
    """See `_work`."""
    return _work.floats(n)


@server.tool()
def take(values: list[float]) -> float:
    """See `_work`."""
    return _work.take(values)


@server.tool()
def fail(message: str) -> None:
    """See `_work`; only the SDK's own exception shows its text to the caller."""
    try:
        _work.fail(message)
    except ValueError as error:
        raise ToolError(str(error)) from error


if __name__ == "__main__":
    server.run("stdio")
