"""A program with a busy agent, to be killed at any moment. A script.

`argv`: the folder for records, and optionally `gate`. Prints the run's folder after the first tool
result, then goes on until it is killed: turns with tool calls, large outputs, pictures, and with
`gate` also calls of a served interface.
"""

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Image

from seer.environment import SandboxConfig, ScopedSandbox
from seer.harness import Call, Scripted, Step, ToolResult, run_agent

INTERFACE = """
import numpy as np

@expose
def double(n: int) -> int:
    return 2 * n

@expose
def activations(n: int) -> np.ndarray:
    return np.full((64, 512), n, dtype=np.float32)
"""


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
    async with AsyncExitStack() as stack:
        servers: dict[str, Any] = {"lab": tools()}
        names = ["small", "large", "picture"]
        if sys.argv[2:] == ["gate"]:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers |= await _served(stack, _interface(folder))
            names += ["double", "activations"]
        steps = [
            Step(text=f"turn {n}", calls=tuple(_call(name, n) for name in names))
            for n in range(100_000)
        ]
        run = run_agent("go", servers, provider=Scripted(steps), record=Path(sys.argv[1]))
        said = False
        async for event in run:
            if isinstance(event, ToolResult) and not said:
                said = True
                sys.stdout.write(f"{run.folder}\n")
                sys.stdout.flush()


def _interface(folder: Path) -> Path:
    file = folder / "model_tools.py"
    file.write_text(INTERFACE)
    return file


async def _served(stack: AsyncExitStack, file: Path) -> dict[str, Any]:
    config = SandboxConfig(gpu=None, provider="local", python_packages=["numpy"])
    scoped = await stack.enter_async_context(ScopedSandbox(config))
    served: Any = await scoped.aserve(file, "mcp")
    return served


def _call(name: str, n: int) -> Call:
    return Call(tool=name, arguments={"n": n})


if __name__ == "__main__":
    asyncio.run(main())
