"""The page of tool names says what the code offers and what vendors' models are sent."""

import io
import re
from pathlib import Path
from typing import Any, cast

import pytest
from mcp.server import MCPServer

from seer.events import RunStarted, ToolCall
from seer.harness import Call, Scripted, Step, agent_names, run_agent
from seer.harness.agents._human import HumanAgent
from seer.harness.terminal._terminal import LineTerminal
from seer.rpc.client import connect
from seer.rpc.interface._schema import Schema
from seer.testing import AnthropicEndpoint, GeminiEndpoint, OpenAIEndpoint
from seer.testing.vendors import Reply, VendorEndpoint
from seer.tools._functions import FunctionTools
from seer.tools._notebook import notebook_tools
from seer.tools._python import python_tools
from seer.tools._session import common_tools
from seer.tools._sets import save_for
from seer.tools._shell import shell_tools

PAGE = Path(__file__).parents[2] / "docs" / "tool-names.md"
NOBODY = cast("Any", None)
"""In place of a session: its tools are only listed."""


def rows() -> dict[str, list[str]]:
    """The table rows of the page: the first cell, and the other cells."""
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("|"):
            first, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            found[first] = rest
    return found


def names(cell: str) -> list[str]:
    """What is written as code in a cell."""
    return re.findall(r"`([^`]+)`", cell)


AGENTS = {
    agent: (names(cells[0])[0], names(cells[1])[0])
    for first, cells in rows().items()
    if len(cells) == 2
    for agent in names(first)
}
"""By agent: the name it sees, and the name where two servers have the tool."""


def test_the_tools_of_each_session_are_listed() -> None:
    listed = {first.split(" (")[0]: names(cells[0]) for first, cells in rows().items()}
    common = [tool.name for tool in common_tools(NOBODY)]
    assert listed["every session, also"] == common
    kinds = {"Python": python_tools, "shell": shell_tools, "notebook": notebook_tools}
    for kind, tools in kinds.items():
        own = [tool.name for tool in tools(NOBODY) if tool.name not in common]
        assert listed[f"a {kind} session"] == own


def test_the_tools_of_an_interface_are_listed() -> None:
    schema = Schema("model_tools", {})
    found = [
        tool.name for tool in FunctionTools(schema, connect("model_tools", ""), save_for).tools()
    ]
    (row,) = (cells for first, cells in rows().items() if first.startswith("an interface"))
    assert names(row[0]) == found


def test_every_agent_is_listed() -> None:
    # The other two agents replay a record, with the names in it.
    assert {name.partition(":")[0] for name in AGENTS} == {*agent_names()}


def servers(*names: str) -> dict[str, MCPServer]:
    """Tool servers that each have a tool `python`."""
    made: dict[str, MCPServer] = {}
    for name in names:
        made[name] = MCPServer(name)

        def python(code: str) -> str:
            """Run code."""
            return code

        made[name].tool()(python)
    return made


@pytest.mark.parametrize("others", [(), ("other",)], ids=["one server", "two servers"])
@pytest.mark.parametrize("agent", ["scripted", "human"])
async def test_agents_of_this_process_call_tools_by_the_listed_name(
    agent: str, others: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEER_RUNS", str(tmp_path / "runs"))
    tool = AGENTS[agent][len(others)]
    shown = io.StringIO()
    if agent == "scripted":
        provider: Any = Scripted([Step(calls=[Call(tool, {"code": "1"})])])
    else:
        lines = io.StringIO(f'{tool} {{"code": "1"}}\n/done\n')
        provider = HumanAgent(LineTerminal(lines, shown))
    events = [e async for e in run_agent("x", servers("lab", *others), provider=provider)]
    assert isinstance(events[0], RunStarted)
    assert tool in {info.name for info in events[0].tools}
    (call,) = (event for event in events if isinstance(event, ToolCall))
    assert (call.name, call.server) == (tool, "lab")


def endpoint(agent: str) -> tuple[VendorEndpoint, dict[str, Any]]:
    """A vendor's endpoint that answers one sentence, and `run_agent`'s other arguments for it."""
    script = [Reply(text="Done.")]
    if agent == "claude":
        return AnthropicEndpoint(script), {}
    if agent == "gemini":
        return GeminiEndpoint(script), {"model": "gemini-3.8-flash"}
    return OpenAIEndpoint(script), {"model": "scripted"}


def sent_names(body: Any) -> set[str]:
    """The names of the tools in a request to a vendor's model."""
    found: set[str] = set()
    for tool in body["tools"]:
        declared = tool.get("functionDeclarations") or [tool.get("function", tool)]
        found |= {function["name"] for function in declared}
    return found


@pytest.mark.full
@pytest.mark.parametrize("others", [(), ("other",)], ids=["one server", "two servers"])
@pytest.mark.parametrize("agent", [name for name in AGENTS if name not in ("scripted", "human")])
async def test_vendors_models_are_sent_the_listed_names(
    agent: str, others: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEER_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("IS_SANDBOX", raising=False)
    made, more = endpoint(agent)
    with made as vendor:
        run = run_agent(
            "x",
            servers("lab", *others),
            provider=agent,
            base_url=vendor.url,
            api_key="sk-tool-names-0123456789",
            **more,
        )
        assert [event async for event in run][-1].type == "run_finished"
        sent = sent_names(vendor.requests[0].body)
    expected = AGENTS[agent][len(others)]
    assert sent == {expected, *(expected.replace("lab", other) for other in others)}
