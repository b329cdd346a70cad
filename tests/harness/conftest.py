"""Shared by the tests of the harness: records in a temporary folder, a server with tools."""

import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer


@pytest.fixture(autouse=True)
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records go here, and the developer's own agent settings do not apply."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("SEER_RUNS", str(folder))
    monkeypatch.delenv("SEER_AGENT", raising=False)
    return folder


@pytest.fixture
def calculator() -> MCPServer:
    """An in-process tool server."""
    server: MCPServer = MCPServer("calculator")

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def broken() -> str:
        """Always fails."""
        raise ValueError("no")

    server.tool()(add)
    server.tool()(broken)
    return server


@pytest.fixture
def stdio_server(tmp_path: Path) -> dict[str, Any]:
    """The configuration of a real tool server that can add, sleep and die."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    return {"tools": {"type": "stdio", "command": sys.executable, "args": [str(script)]}}


SERVER = '''
import os, sys, time
from mcp.server import MCPServer
from mcp.server.mcpserver import Image

server = MCPServer("tools")

@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@server.tool()
def die() -> str:
    """End this process at once."""
    print("out of cheese", file=sys.stderr, flush=True)
    os._exit(3)

@server.tool()
async def sleep(seconds: float) -> str:
    """Sleep."""
    import anyio
    await anyio.sleep(seconds)
    return "slept"

@server.tool()
def whoami() -> str:
    """The id of this process."""
    return str(os.getpid())

@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\\x89PNG not really", format="png")

server.run("stdio")
'''
