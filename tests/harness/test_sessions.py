"""Vendors' agents with real sessions: real SDK, real tool server, real jail."""

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.events import Event, RunStarted
from seer.execution import (
    LocalSession,
    acreate_local_session,
    acreate_notebook_session,
    create_local_session,
)
from seer.harness import Call as ScriptedCall
from seer.harness import RunFinished, Scripted, Step, ToolResult, run_agent
from seer.runs import open_run
from seer.testing import AnthropicEndpoint, OpenAIEndpoint, Reply, ToolUse
from seer.workspace import Library, Workspace

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

HELPERS = '"""Helpers."""\n\n\ndef double(x: int) -> int:\n    """Twice x."""\n    return 2 * x\n'


async def collect(run: Any) -> list[Event]:
    with anyio.fail_after(120):
        return [event async for event in run]


@pytest.mark.parametrize("vendor", ["claude", "openai"])
async def test_a_vendors_agent_works_in_a_session(
    vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IS_SANDBOX", raising=False)
    workspace = Workspace(libraries=[Library.from_code("helpers", HELPERS)])
    session = await acreate_local_session(workspace, workspace_dir=tmp_path / "w", name="lab")
    kind = AnthropicEndpoint if vendor == "claude" else OpenAIEndpoint
    tool = "mcp__lab__python" if vendor == "claude" else "python"
    code = "import helpers, os; print(helpers.double(21), sorted(os.listdir('.')))"
    script = [Reply(tools=(ToolUse(name=tool, arguments={"code": code}),)), Reply(text="42")]
    try:
        with kind(script) as endpoint:
            run = run_agent(
                session=session,
                task="double it",
                provider=vendor,
                model="scripted",
                base_url=endpoint.url,
                api_key="sk-0123456789",
            )
            events = await collect(run)
            first = str(endpoint.requests[0].body)
    finally:
        await session.aclose()
    assert isinstance(events[0], RunStarted)
    assert events[0].session == session.session_id
    assert "Twice x." in first, "the libraries' documentation is in the prompt"
    [result] = [event for event in events if isinstance(event, ToolResult)]
    assert result.text.startswith("42 ")
    assert not result.is_error
    assert isinstance(events[-1], RunFinished)
    assert (events[-1].reason, events[-1].result) == ("completed", "42")
    assert open_run(run.run_id).meta["session"] == session.session_id


async def test_the_only_open_session_is_found_by_the_seeds_form(tmp_path: Path) -> None:
    session = await acreate_local_session(workspace_dir=tmp_path / "w", name="only")
    agent = Scripted([Step(calls=(ScriptedCall(tool="python", arguments={"code": "print(6*7)"}),))])
    try:
        events = await collect(run_agent(prompt="x", mcp_config={}, provider=agent))
        with_config = run_agent(prompt="x", mcp_config=session.mcp_config, provider=agent)
        again = await collect(with_config)
    finally:
        await session.aclose()
    for found in (events, again):
        [result] = [event for event in found if isinstance(event, ToolResult)]
        assert result.text == "42\n"
        assert isinstance(found[0], RunStarted)
        assert found[0].session == session.session_id


@pytest.mark.parametrize("served", [True, False])
def test_a_program_that_closes_no_session_can_run_twice_in_one_process(
    tmp_path: Path, served: bool
) -> None:
    """Like the original example program, it ends its sandbox and leaves its session open."""
    (tmp_path / "tools.py").write_text("@expose\ndef one() -> int:\n    return 1\n")
    agent = Scripted([Step(calls=(ScriptedCall(tool="python", arguments={"code": "print(6*7)"}),))])
    left: list[LocalSession] = []

    async def main(folder: Path) -> list[Event]:
        libraries: list[Library] = []
        scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local"))
        if served:
            libraries.append(scoped.start().serve(tmp_path / "tools.py"))
        left.append(create_local_session(Workspace(libraries=libraries), folder))
        events = await collect(run_agent(prompt="x", mcp_config={}, provider=agent))
        scoped.terminate()
        return events

    try:
        for number in ("1", "2"):
            events = asyncio.run(main(tmp_path / number))
            [result] = [event for event in events if isinstance(event, ToolResult)]
            assert result.text == "42\n"
    finally:
        for session in left:
            session.close()


async def test_the_notebook_is_kept_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_TOKEN", "tok-9876543210")
    session = await acreate_notebook_session(None, name="book")
    code = "print('in the ' + 'notebook', 'tok-9876543210')"
    agent = Scripted(
        [Step(calls=(ScriptedCall(tool="add_code_cell", arguments={"source": code}),))]
    )
    try:
        run = run_agent("x", provider=agent, session=session)
        events = await collect(run)
    finally:
        await session.aclose()
    [result] = [event for event in events if isinstance(event, ToolResult)]
    assert "in the notebook" in result.text
    recorded = open_run(run.run_id)
    assert recorded.artifacts() == [Path("notebook.ipynb")]
    kept = (recorded.folder / "artifacts" / "notebook.ipynb").read_text()
    assert "in the notebook" in kept
    assert "tok-9876543210" not in kept
