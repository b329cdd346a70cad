"""A program with an agent at work, to be killed at any moment. A script.

`argv`: the folder for records. Prints the run's folder once there is one, then goes on until it is
killed: turns with tool calls, large outputs, pictures.
"""

import asyncio
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver import Image

from seer.harness import Call, Scripted, Step, run_agent


def tools() -> MCPServer:
    """A server whose results are small, large and binary."""
    server: MCPServer = MCPServer("lab")

    def small(n: int) -> str:
        """A line."""
        return f"result {n}"

    def large(n: int) -> str:
        """Too much for a line."""
        return f"{n} " * 20_000

    def picture(n: int) -> Image:
        """Bytes."""
        return Image(data=b"\x89PNG" + bytes([n % 256]) * 30_000, format="png")

    for function in (small, large, picture):
        server.tool()(function)
    return server


async def main() -> None:
    """Run until killed."""
    steps = [
        Step(
            text=f"turn {n}", calls=tuple(_call(name, n) for name in ("small", "large", "picture"))
        )
        for n in range(100_000)
    ]
    run = run_agent("go", {"lab": tools()}, provider=Scripted(steps), record=Path(sys.argv[1]))
    async for event in run:
        if event.seq == 0:
            sys.stdout.write(f"{run.folder}\n")
            sys.stdout.flush()


def _call(name: str, n: int) -> Call:
    return Call(tool=name, arguments={"n": n})


if __name__ == "__main__":
    asyncio.run(main())
