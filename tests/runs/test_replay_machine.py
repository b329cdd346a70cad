"""An agent that worked on a whole machine is replayed from the results of its tools."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import anyio
import pytest
from mcp.server import MCPServer

from seer.environment import Sandbox, SandboxConfig
from seer.errors import SandboxStateError
from seer.events import ErrorEvent, Event
from seer.execution import (
    CliSession,
    NotebookSession,
    acreate_cli_session,
    acreate_notebook_session,
)
from seer.harness import (
    Agent,
    Call,
    Expect,
    ReplayAgent,
    RunFinished,
    Scripted,
    Step,
    Text,
    ToolResult,
    run_agent,
)
from seer.runs import Run, compare_runs, open_run

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

Kind = Literal["notebook", "cli"]
PICTURE = """
import base64, os
from IPython.display import Image, display
display(Image(data=base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
), format="png"))
print(os.urandom(8).hex())
"""
CODE: dict[Kind, tuple[str, ...]] = {
    "notebook": (PICTURE, "1 / 0", "print('the last')"),
    "cli": ("head -c 8 /dev/urandom | od -An -tx1", "false; echo $?", "echo the last"),
}


ANY = Expect(error="any")
TOOLS: dict[Kind, tuple[str, str]] = {
    "notebook": ("add_code_cell", "source"),
    "cli": ("shell", "command"),
}


def scripted(kind: Kind, code: Sequence[str]) -> Scripted:
    tool, argument = TOOLS[kind]
    steps = [
        Step(text=f"step {n}", calls=(Call(tool=tool, arguments={argument: text}, expect=ANY),))
        for n, text in enumerate(code)
    ]
    return Scripted([*steps, Step(text="done")])


async def program(
    folder: Path, kind: Kind, agent: Agent, **servers: MCPServer
) -> tuple[Run, list[Event]]:
    """A user's program: a machine, a session on it, an agent in the session."""
    async with Sandbox(SandboxConfig(gpu=None, provider="local")) as sandbox:
        session: NotebookSession | CliSession
        if kind == "notebook":
            session = await acreate_notebook_session(sandbox, notebook_dir=folder)
        else:
            session = await acreate_cli_session(sandbox)
        async with session:
            run = run_agent("look", provider=agent, session=session, mcp_servers=[servers])
            with anyio.fail_after(120):
                events = [event async for event in run]
    return open_run(run.run_id), events


def said(events: list[Event]) -> list[object]:
    return [
        (event.content, event.is_error) if isinstance(event, ToolResult) else event.text
        for event in events
        if isinstance(event, (ToolResult, Text))
    ]


def last(events: list[Event]) -> RunFinished:
    assert isinstance(events[-1], RunFinished)
    return events[-1]


@pytest.mark.parametrize("kind", ["notebook", "cli"])
async def test_a_run_on_a_machine_is_replayed_without_it(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = scripted(kind, CODE[kind])
    recorded, events = await program(tmp_path / "first", kind, agent)
    assert last(events).reason == "completed", last(events)
    assert len([event for event in events if isinstance(event, ToolResult)]) == 3

    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    replay = ReplayAgent.from_argument(str(recorded.folder))
    for again in (replay, agent):
        replayed, played = await program(tmp_path / "again", kind, again)
        assert last(played).reason == "completed", last(played)
        assert said(played) == said(events)
        assert compare_runs(recorded, replayed).equal
        assert replayed.meta["replay_of"] == str(recorded.folder)
        assert replayed.artifacts() == recorded.artifacts()
        assert bool(replayed.artifacts()) == (kind == "notebook")

    changed = scripted(kind, [CODE[kind][0], "another"])
    _, parted = await program(tmp_path / "parted", kind, changed)
    [error] = [event for event in parted if isinstance(event, ErrorEvent)]
    assert error.kind == "divergence"
    assert "tool call 2 is not the recorded one" in error.message
    assert f"recorded: {TOOLS[kind][0]}(" in error.message
    assert "'another')" in error.message.splitlines()[-1]
    assert last(parted).reason == "error"
    assert said(parted)[:2] == said(events)[:2]


async def test_a_live_tool_beside_a_replayed_machine_has_its_recorded_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    probe: MCPServer = MCPServer("probe")
    probe.tool(name="restart")(lambda: "the probe begins afresh")
    agent = Scripted([Step(calls=(Call(tool="probe__restart"),)), Step(text="done")])
    recorded, events = await program(tmp_path / "first", "cli", agent, probe=probe)
    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    for again in (ReplayAgent(recorded), agent):
        replayed, played = await program(tmp_path / "again", "cli", again, probe=probe)
        assert last(played).reason == "completed", last(played)
        assert said(played) == said(events)
        assert compare_runs(recorded, replayed).equal


async def test_a_replayed_machine_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded, _ = await program(tmp_path / "first", "cli", scripted("cli", CODE["cli"]))
    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    async with Sandbox(SandboxConfig(gpu=None, provider="local")) as sandbox:
        with pytest.raises(SandboxStateError, match="a replay cannot run"):
            await sandbox.aexec("id")
        async with await acreate_cli_session(sandbox) as session:
            for work in (session.aexec, session.astart_job, session.aopen_terminal):
                with pytest.raises(SandboxStateError, match="this session is replayed"):
                    await work("id")
        async with await acreate_notebook_session(sandbox, notebook_dir=tmp_path) as notebook:
            cell = await notebook.aadd_cell("1 + 1")
            with pytest.raises(SandboxStateError, match="this session is replayed"):
                await notebook.arun_cell(cell)
