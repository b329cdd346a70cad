"""A recorded run runs again without its interface, to the same results, or says where not."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.errors import GateError
from seer.execution import acreate_local_session
from seer.harness import (
    Agent,
    Call,
    ErrorEvent,
    Event,
    Forked,
    RunFinished,
    Scripted,
    Step,
    Text,
    ToolResult,
    run_agent,
)
from seer.runs import GateCall, Run, open_run
from seer.workspace import Workspace

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

INTERFACE = '''
import numpy as np

calls = 0

@expose
def count(by: int = 1) -> dict:
    """Count up; the state lasts."""
    global calls
    calls += by
    return {"z": calls, "a": [1.5, None, "x"]}

@expose
def grid(rows: int) -> np.ndarray:
    """Numbers, enough of them to travel as an array."""
    return np.arange(rows * 1000, dtype=np.float32).reshape(rows, 1000) + calls

@expose
def total(values: np.ndarray) -> float:
    """The sum of an array."""
    return float(values.sum())

@expose
def fail(message: str) -> None:
    """Raise."""
    raise KeyError(message)
'''

CELLS = (
    "import tools; print(tools.count(2))",
    "g = tools.grid(200); print(g.shape, g.sum(), tools.total(g))",
    "try:\n    tools.fail('no')\nexcept KeyError as error:\n    print('KeyError', error)",
    "print(tools.count(by=5))",
)


def steps(cells: tuple[str, ...] = CELLS) -> list[Step]:
    made = [
        Step(text=f"cell {n}", calls=(Call(tool="python", arguments={"code": code}),))
        for n, code in enumerate(cells)
    ]
    return [*made, Step(text="done")]


def write_interface(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    interface = folder / "tools.py"
    interface.write_text(INTERFACE)
    return interface


async def program(folder: Path, agent: Agent, provider: str = "local") -> tuple[str, list[Event]]:
    """A user's program: serve, open a session, run an agent in it."""
    interface = write_interface(folder)
    scoped = ScopedSandbox(SandboxConfig(gpu=None, provider=provider))
    await scoped.astart()
    try:
        library: Any = await scoped.aserve(interface, name="tools")
        session = await acreate_local_session(
            Workspace(libraries=[library]), workspace_dir=folder / "workspace", name="lab"
        )
        try:
            run = run_agent("look", provider=agent, session=session)
            with anyio.fail_after(120):
                events = [event async for event in run]
        finally:
            await session.aclose()
    finally:
        await scoped.aterminate()
    return run.run_id, events


def outputs(events: list[Event]) -> list[tuple[str, bool]]:
    return [(event.text, event.is_error) for event in events if isinstance(event, ToolResult)]


def last(events: list[Event]) -> RunFinished:
    assert isinstance(events[-1], RunFinished)
    return events[-1]


def replaying(run: Run) -> Any:
    from seer.harness._replay import ReplayAgent

    return ReplayAgent(run)


async def test_a_run_is_recorded_and_runs_again_without_the_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, events = await program(tmp_path / "first", Scripted(steps()))
    assert last(events).reason == "completed", last(events)
    assert "'z': 7" in outputs(events)[3][0]
    recorded = open_run(run_id)
    recorded.verify()
    calls = [GateCall.from_json(line) for line in recorded.calls()]
    assert [call.function for call in calls] == ["count", "grid", "total", "fail", "count"]
    assert [call.outcome for call in calls][3] != "ok"
    assert len({call.caller for call in calls}) == 1
    assert calls[1].result_buffers == calls[2].argument_buffers != ()

    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    again_id, again = await program(tmp_path / "again", replaying(recorded), "replay")
    assert last(again).reason == "completed", last(again)
    assert outputs(again) == outputs(events)
    assert [e.text for e in again if isinstance(e, Text)] == [
        e.text for e in events if isinstance(e, Text)
    ]
    assert again_id != run_id


async def test_the_first_call_that_differs_is_shown_beside_the_recorded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_id, _ = await program(tmp_path / "first", Scripted(steps(CELLS[:1])))
    monkeypatch.setenv("SEER_REPLAY", str(open_run(run_id).folder))
    changed = ("import tools\ntry:\n    tools.count(3)\nexcept Exception as e:\n    print(e)",)
    _, events = await program(tmp_path / "again", Scripted(steps(changed)), "replay")
    text = outputs(events)[0][0]
    assert "recorded: count(2)" in text
    assert "now:      count(3)" in text
    assert "is not the recorded one" in caplog.text


async def test_a_result_that_differs_ends_the_replay_with_both_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = ("import os, tools; tools.count(); print(os.urandom(4).hex())", CELLS[3])
    run_id, _ = await program(tmp_path / "first", Scripted(steps(cells)))
    recorded = open_run(run_id)
    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    _, events = await program(tmp_path / "again", replaying(recorded), "replay")
    error = next(event for event in events if isinstance(event, ErrorEvent))
    assert error.kind == "divergence"
    assert "recorded:" in error.message
    assert "now:" in error.message
    assert last(events).reason == "error"
    assert len(outputs(events)) == 1


async def test_past_the_record_the_live_interface_takes_over_with_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, first = await program(tmp_path / "first", Scripted(steps()))
    monkeypatch.setenv("SEER_REPLAY", str(open_run(run_id).folder))
    monkeypatch.setenv("SEER_REPLAY_LIVE", "local")
    more = (*CELLS, "print(tools.count(by=100))", "print(tools.grid(300).mean())")
    _, events = await program(tmp_path / "again", Scripted(steps(more)), "replay")
    assert outputs(events)[:4] == outputs(first)
    assert "'z': 107" in outputs(events)[4][0]
    assert outputs(events)[5] == ("150106.5\n", False)


async def test_a_fork_plays_the_first_turns_and_goes_on_with_another_agent(
    tmp_path: Path,
) -> None:
    run_id, first = await program(tmp_path / "first", Scripted(steps()))
    other = Scripted(
        [
            Step(calls=(Call(tool="python", arguments={"code": "print(tools.count(50))"}),)),
            Step(text="another end"),
        ]
    )
    fork = Forked(open_run(run_id), turn=2, agent=other)
    _, events = await program(tmp_path / "fork", fork)
    assert outputs(events)[:2] == outputs(first)[:2]
    assert "'z': 52" in outputs(events)[2][0]
    assert (last(events).result, last(events).turns) == ("another end", 4)


async def test_a_replay_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id, _ = await program(tmp_path / "first", Scripted(steps(CELLS[:1])))
    monkeypatch.setenv("SEER_REPLAY", str(open_run(run_id).folder))
    scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="replay"))
    await scoped.astart()
    try:
        with pytest.raises(Exception, match="a replay runs nothing"):
            await scoped.aexec("id")
        interface = tmp_path / "tools.py"
        interface.write_text("this is not even Python")
        library: Any = await scoped.aserve(interface, name="tools")
        module = library.connect()
        with pytest.raises(GateError, match="no more calls|is not the recorded one"):
            module.count(99)
    finally:
        await scoped.aterminate()
