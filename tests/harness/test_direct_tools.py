"""A run calls the tools of its own process directly: no relay, no socket, the same answers."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.events import ErrorEvent, Event
from seer.execution import acreate_cli_session
from seer.harness import (
    Call,
    Expect,
    Limits,
    RunFinished,
    Scripted,
    Step,
    ToolCall,
    ToolResult,
    run_agent,
)
from seer.runs import open_run

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


def shell(*commands: str) -> Scripted:
    return Scripted([Step(calls=(Call(tool="shell", arguments={"command": c}),)) for c in commands])


async def collect(run: Any) -> list[Event]:
    with anyio.fail_after(120):
        return [event async for event in run]


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, ToolResult)]


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No MCP server may be started."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a tool server was started")

    monkeypatch.setattr("mcp.stdio_client", refuse)


@pytest.mark.usefixtures("no_processes")
async def test_a_session_is_used_without_a_server(tmp_path: Path) -> None:
    used = await acreate_cli_session(workspace_dir=tmp_path / "used", name="my lab!")
    other = await acreate_cli_session(workspace_dir=tmp_path / "other")
    async with used, other:
        agent = shell("echo $((6 * 7)); printf '\\xed\\xa0\\x80'")
        events = await collect(run_agent("x", provider=agent, session=used))
        assert used.open_mcp_config == {} and other.open_mcp_config == {}, "nobody read them"
        [text] = texts(events)
        assert text.startswith("42\n")
        [call] = [event for event in events if isinstance(event, ToolCall)]
        assert call.server == "my-lab"
        # A server of this process is known by its configuration, under any name.
        entry = used.mcp_config["my-lab"]
        assert used.mcp_config == used.open_mcp_config == {"my-lab": entry}
        again = await collect(run_agent("x", {"renamed": entry}, provider=shell("echo again")))
        assert texts(again) == ["again\n"]
        [call] = [event for event in again if isinstance(event, ToolCall)]
        assert call.server == "renamed"


async def test_stopping_a_run_interrupts_what_its_tool_does(tmp_path: Path) -> None:
    async with await acreate_cli_session(workspace_dir=tmp_path / "w") as session:
        limits = Limits(seconds=2, conclude_seconds=30)
        run = run_agent("x", provider=shell("sleep 600", "true"), session=session, limits=limits)
        events = await collect(run)
        assert isinstance(events[-1], RunFinished) and events[-1].reason == "limit"
        with anyio.fail_after(60):
            assert (await session.aexec("echo free")).text == "free\n"


async def test_a_session_that_closes_during_a_run_ends_it_with_the_reason(tmp_path: Path) -> None:
    session = await acreate_cli_session(workspace_dir=tmp_path / "w", name="lab")
    events: list[Event] = []
    with anyio.fail_after(120):
        async for event in run_agent("x", provider=shell("true", "true"), session=session):
            events.append(event)
            if isinstance(event, ToolResult):
                await session.aclose()
    [error] = [event for event in events if isinstance(event, ErrorEvent)]
    assert error.kind == "tool_server" and "'lab': it was closed" in error.message
    assert isinstance(events[-1], RunFinished) and events[-1].reason == "error"


@pytest.mark.usefixtures("no_processes")
async def test_functions_served_as_tools_are_called_directly_and_recorded(tmp_path: Path) -> None:
    file = tmp_path / "lab.py"
    file.write_text("@expose\ndef double(x: int) -> int:\n    return 2 * x\n")
    with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as sandbox:
        config = sandbox.serve(file, "mcp")
        agent = Scripted(
            [
                Step(calls=(Call(tool="double", arguments={"x": 21}),)),
                Step(
                    calls=(Call(tool="double", arguments={"x": "many"}, expect=Expect(error=True)),)
                ),
            ]
        )
        run = run_agent("x", mcp_servers=[config], provider=agent)
        events = await collect(run)
    first, second = (event for event in events if isinstance(event, ToolResult))
    assert (first.text, first.structured, first.is_error) == ("42", {"result": 42}, False)
    assert second.is_error and "'many'" in second.text
    first_call = next(open_run(run.run_id).calls())
    assert (first_call["function"], first_call["outcome"]) == ("double", "ok")
    assert first_call["tool_call"] == first.id
