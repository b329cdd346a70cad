"""A vendor's agent, run by an ordinary user; prints the outcome as JSON. A script."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

from seer.harness import Call, RunFinished, Scripted, Step, ToolResult, run_agent
from seer.testing import AnthropicEndpoint, Reply, ToolUse

SECRET = Path.home() / "secret.txt"


def tools() -> MCPServer:
    """One harmless tool."""
    server: MCPServer = MCPServer("lab")

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    server.tool()(add)
    return server


def processes() -> list[dict[str, Any]]:
    """The agent's processes as this user sees them."""
    own = os.readlink("/proc/self/ns/net")  # noqa: PTH115
    found: list[dict[str, Any]] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cmdline").read_bytes().startswith(b"/agent/bin/agent\0"):
                names = [
                    item.partition(b"=")[0].decode()
                    for item in (path / "environ").read_bytes().split(b"\0")
                ]
                found.append({"apart": os.readlink(path / "ns" / "net") != own, "names": names})  # noqa: PTH115
        except OSError:
            continue
    return found


def mode(folder: Path | None) -> str:
    """Who may open a folder."""
    assert folder is not None
    return oct(folder.stat().st_mode & 0o777)


async def main() -> None:
    """Let the vendor's model ask for things that it must not have."""
    SECRET.write_text("the user's own secret")
    seen: list[dict[str, Any]] = []

    def look(_request: object) -> Reply:
        seen.extend(processes())
        return Reply(text="done")

    script = [
        Reply(tools=(ToolUse(name="Bash", arguments={"command": f"cat {SECRET}"}),)),
        Reply(tools=(ToolUse(name="Read", arguments={"file_path": str(SECRET)}),)),
        Reply(tools=(ToolUse(name="mcp__lab__add", arguments={"a": 1, "b": 2}),)),
        look,
    ]
    with AnthropicEndpoint(script) as endpoint:
        run = run_agent(
            "look",
            {"lab": tools()},
            provider="claude",
            base_url=endpoint.url,
            api_key="sk-0123456789",
        )
        events = [event async for event in run]
        bodies = json.dumps([request.body for request in endpoint.requests])
    end = events[-1]
    assert isinstance(end, RunFinished)
    scripted = Scripted([Step(calls=(Call(tool="add", arguments={"a": 2, "b": 2}),))])
    again = [event async for event in run_agent("x", {"lab": tools()}, provider=scripted)]
    results = [event for event in events if isinstance(event, ToolResult)]
    report = {
        "user": os.geteuid(),
        "results": [(event.name, event.is_error) for event in results],
        "reason": end.reason,
        "leaked": "the user's own secret" in bodies,
        "processes": seen,
        "left": [
            path.name for path in (Path.home() / ".local/state/seer/sessions").glob("agent-*")
        ],
        "scripted": [event.text for event in again if isinstance(event, ToolResult)],
        "record": mode(run.folder),
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
