"""What the checks of `agent_contract` stand on: tools, runs, and ways to look at them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import anyio
import psutil
from mcp.server import MCPServer
from mcp.server.mcpserver import Image

from seer.harness import AgentRun, ErrorEvent, Event, RunFinished, run_agent
from seer.testing._vendors import ScriptItem, ToolUse, VendorEndpoint

E = TypeVar("E", bound=Event)

KEY = "sk-contract-0123456789abcdef"
PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f"
    b"\x15\xc4\x89\x00\x00\x00\nIDATx\x9cc\x00\x01\x00\x00\x05\x00\x01\r\n-\xb4\x00\x00\x00\x00"
    b"IEND\xaeB`\x82"
)


def tools(done: list[str] | None = None) -> MCPServer:
    """A tool server in this process."""
    server: MCPServer = MCPServer("lab")

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        if done is not None:
            done.append(f"add {a} {b}")
        return a + b

    def fail() -> str:
        """Always fails."""
        raise ValueError("the tool is broken")

    def picture() -> Image:
        """A picture."""
        return Image(data=PIXEL, format="png")

    async def forever() -> str:
        """Never ends."""
        await anyio.sleep_forever()
        return ""

    for function in (add, fail, picture, forever):
        server.tool()(function)
    return server


class AgentGround(ABC):
    """Ways to run a vendor's agent against its endpoint. Override the first three methods."""

    patience = 60.0
    """How long one run may take, in seconds."""

    @abstractmethod
    def endpoint(self, script: Sequence[ScriptItem]) -> VendorEndpoint:
        """The vendor's endpoint with this script."""

    @abstractmethod
    def arguments(self, endpoint: VendorEndpoint) -> dict[str, Any]:
        """Arguments of `run_agent` that lead to the endpoint (`provider`, `base_url`, ...)."""

    def wire_name(self, tool: str) -> str:
        """The name under which the vendor's model calls a tool of the server `lab`."""
        return tool

    # --- to write checks with ------------------------------------------------

    def add(self, a: int = 1, b: int = 2) -> ToolUse:
        """A call of the tool that adds."""
        return self.use("add", a=a, b=b)

    def use(self, tool: str, **arguments: Any) -> ToolUse:
        """A call of a tool."""
        return ToolUse(name=self.wire_name(tool), arguments=arguments)

    def start(self, endpoint: VendorEndpoint, **arguments: Any) -> AgentRun:
        """A run against the endpoint."""
        given: dict[str, Any] = {"task": "add one and two", "mcp_config": {"lab": tools()}}
        given |= {"api_key": KEY, **self.arguments(endpoint), **arguments}
        return run_agent(**given)

    async def finish(self, run: AgentRun) -> list[Event]:
        """All events of a run."""
        with anyio.fail_after(self.patience):
            return [event async for event in run]

    async def play(self, script: Sequence[ScriptItem], **arguments: Any) -> list[Event]:
        """All events of a run against this script."""
        with self.endpoint(script) as endpoint:
            return await self.finish(self.start(endpoint, **arguments))


def only(events: Sequence[Event], kind: type[E]) -> list[E]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def last(events: Sequence[Event]) -> RunFinished:
    """The last event, which must say that the run is finished."""
    assert isinstance(events[-1], RunFinished)
    return events[-1]


def fatal(events: Sequence[Event]) -> ErrorEvent:
    """The one error that ended the run."""
    errors = [error for error in only(events, ErrorEvent) if error.fatal]
    assert len(errors) == 1, errors
    return errors[0]


def children() -> set[int]:
    """All processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}
