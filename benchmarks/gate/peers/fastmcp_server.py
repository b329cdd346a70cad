"""FastMCP tools on standard input and output."""

from __future__ import annotations

from fastmcp import FastMCP

from benchmarks.gate import _work

server = FastMCP("bench")


@server.tool
def small(x: int) -> int:
    """See `_work`."""
    return _work.small(x)


@server.tool
def floats(n: int) -> list[float]:
    """See `_work`."""
    return _work.floats(n)


@server.tool
def take(values: list[float]) -> float:
    """See `_work`."""
    return _work.take(values)


@server.tool
def fail(message: str) -> None:
    """See `_work`."""
    _work.fail(message)


if __name__ == "__main__":
    server.run("stdio", show_banner=False)
