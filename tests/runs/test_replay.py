"""A recorded run runs again without its interface, with the same results or a named difference."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.errors import GateError
from seer.events import ErrorEvent, Event
from seer.execution import LocalSession, acreate_local_session, acreate_notebook_session
from seer.harness import (
    Agent,
    AgentContext,
    AgentRequest,
    Call,
    Forked,
    ReplayAgent,
    RunFinished,
    Scripted,
    Step,
    Text,
    ToolResult,
    run_agent,
)
from seer.runs import GateCall, Run, compare_runs, export_arrays, open_run
from seer.workspace import Workspace
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

INTERFACE = '''
import os
from collections.abc import Iterator

import numpy as np
from seer.rpc import Handle

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
def parts(n: int) -> Iterator[np.ndarray]:
    """One array after the other."""
    for size in range(1, n + 1):
        yield np.full(size * 3000, calls, dtype=np.int64)

@expose
def break_off(n: int) -> Iterator[int]:
    """End the interface's process after some items."""
    yield from range(n)
    os._exit(3)

@expose
def keep(n: int) -> Handle:
    """An array that stays where it is."""
    return np.arange(n * 1000) + calls

@expose(stateful=False)
def where() -> int:
    """The process that ran this."""
    return os.getpid()

@expose
def fail(message: str) -> None:
    """Raise."""
    raise KeyError(message)

@expose
def crash(status: int, text: str = "") -> None:
    """End the interface's process."""
    os._exit(status)

@expose(idempotent=True)
def crash_once(file: str) -> str:
    """End the interface's process the first time."""
    if not os.path.exists(file):
        open(file, "w").close()
        os._exit(9)
    return "again"
'''

CELLS = (
    "import tools; print(tools.count(2))",
    "g = tools.grid(200); print(g.shape, g.sum(), tools.total(g))",
    "try:\n    tools.fail('no')\nexcept KeyError as error:\n    print('KeyError', error)",
    "print(tools.count(by=5))",
)
MORE = (
    CELLS[0],
    "print([part.sum() for part in tools.parts(3)])",
    "a, b = tools.keep(3), tools.keep(4); print(b.fetch().sum(), a.fetch().sum())",
)


def tried(code: str) -> str:
    """A cell that prints the result of some code, or its error."""
    return (
        f"try:\n    print({code})\nexcept Exception as error:\n"
        "    print(type(error).__name__, error)"
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


async def program(
    folder: Path, agent: Agent, provider: str = "local", *, replicas: int = 1, **more: Any
) -> tuple[str, list[Event]]:
    """A user's program: serve, open a session, run an agent in it."""
    interface = write_interface(folder)
    scoped = ScopedSandbox(SandboxConfig(gpu=None, provider=provider, python_packages=["numpy"]))
    await scoped.astart()
    try:
        library: Any = await scoped.aserve(interface, name="tools", replicas=replicas, **more)
        if replicas > 1:
            await scoped.ascale("tools", replicas + 1)
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


def replaying(run: Run) -> Agent:
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
    about = recorded.meta["interfaces"]["tools"]
    assert (
        about["source"]
        == hashlib.sha256((tmp_path / "first" / "tools.py").read_bytes()).hexdigest()
    )
    assert {call.source for call in calls} == {about["source"]}
    assert about["machine"]["isolation"] in {"bubblewrap", "landlock"}
    assert about["machine"]["network"] == "none"
    jail = recorded.meta["jail"]
    assert (jail["kind"], jail["machine"]["network"]) == ("local", "none")
    assert jail["machine"]["memory"] > 0
    assert {"numpy", "pandas", "ipykernel"} <= set(jail["packages"])

    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    again_id, again = await program(tmp_path / "again", replaying(recorded), "replay")
    assert last(again).reason == "completed", last(again)
    assert outputs(again) == outputs(events)
    assert [e.text for e in again if isinstance(e, Text)] == [
        e.text for e in events if isinstance(e, Text)
    ]
    assert again_id != run_id
    replayed = open_run(again_id)
    assert replayed.meta["replay_of"] == str(recorded.folder)
    made = [GateCall.from_json(line) for line in replayed.calls()]
    assert [(c.key, c.outcome, c.result, c.result_buffers, c.tool_call) for c in made] == [
        (c.key, c.outcome, c.result, c.result_buffers, c.tool_call) for c in calls
    ]
    cells = ["call_0_0", "call_1_0", "call_1_0", "call_2_0", "call_3_0"]
    assert [call.tool_call for call in calls] == cells
    replayed.verify()


async def test_streams_and_handles_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, events = await program(tmp_path / "first", Scripted(steps(MORE)))
    assert last(events).reason == "completed", outputs(events)
    assert not any(is_error for _, is_error in outputs(events)), outputs(events)
    recorded = open_run(run_id)
    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    again_id, again = await program(tmp_path / "again", replaying(recorded), "replay")
    assert last(again).reason == "completed", last(again)
    assert outputs(again) == outputs(events)
    keys = [GateCall.from_json(line).key for line in recorded.calls()]
    assert [GateCall.from_json(line).key for line in open_run(again_id).calls()] == keys
    assert len(keys) == 6


async def test_arrays_of_a_run_are_exported_for_numpy(tmp_path: Path) -> None:
    run_id, _ = await program(tmp_path / "first", Scripted(steps((*CELLS, *MORE[1:]))))
    written = export_arrays(open_run(run_id), tmp_path / "arrays")
    assert [path.name for path in written] == [
        "0001-grid-result-0.npy",
        "0002-total-argument-0.npy",
        *(f"0005-parts-result-{n}.npy" for n in range(3)),
        "0008-handle_fetch-result-0.npy",
        "0009-handle_fetch-result-0.npy",
    ]
    grid, total, *parts, kept, _ = (np.load(path, allow_pickle=False) for path in written)
    assert (grid.dtype, grid.shape, grid[-1, -1]) == (np.float32, (200, 1000), 200_001)
    assert np.array_equal(grid, total)
    assert [(part.size, part[0]) for part in parts] == [(3000, 7), (6000, 7), (9000, 7)]
    assert np.array_equal(kept, np.arange(4000) + 7)


async def test_a_run_with_copies_is_replayed_and_goes_on_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "print(len({tools.where() for _ in range(12)}) > 1)"
    cells = (*CELLS, *MORE[1:], "print([tools.where() for _ in range(6)])")
    run_id, events = await program(tmp_path / "first", Scripted(steps(cells)), replicas=2)
    assert not any(is_error for _, is_error in outputs(events)), outputs(events)
    recorded = open_run(run_id)
    recorded.verify()
    calls = [GateCall.from_json(line) for line in recorded.calls()]
    assert len({call.copy for call in calls if call.function == "where"}) > 1
    assert len({call.copy for call in calls if call.function == "count"}) == 1

    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    again_id, again = await program(tmp_path / "again", replaying(recorded), "replay", replicas=2)
    assert last(again).reason == "completed", last(again)
    assert outputs(again) == outputs(events)
    made = [GateCall.from_json(line) for line in open_run(again_id).calls()]
    assert [(call.key, call.copy) for call in made] == [(call.key, call.copy) for call in calls]

    monkeypatch.setenv("SEER_REPLAY_LIVE", "local")
    more = (*cells, "print(tools.count(by=100))", where)
    _, on = await program(tmp_path / "on", Scripted(steps(more)), "replay", replicas=2)
    assert outputs(on)[: len(cells)] == outputs(events)
    assert "'z': 107" in outputs(on)[-2][0]
    assert outputs(on)[-1] == ("True\n", False)


@pytest.mark.parametrize("restart", ["on-failure", "never"])
async def test_a_run_whose_interface_died_is_replayed_with_what_its_calls_were_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: str
) -> None:
    # A crash loses the records of the last moment. The run would say so, and would be useless here.
    written = "import time; time.sleep(0.3)\n"
    cells = (
        "import tools; kept = tools.keep(1); print('kept')",
        written + tried("tools.crash(3, text='a')"),
        tried("tools.count(1)"),
        tried("kept.fetch()"),
        tried("tools.count(2)"),
        written + tried("tools.crash_once('/tmp/once')"),
        tried("tools.count(3)"),
    )
    first, again = tmp_path / "first", tmp_path / "again"
    run_id, events = await program(first, Scripted(steps(cells)), restart=restart)
    assert last(events).reason == "completed", last(events)
    assert "CallLostError crash() was lost" in outputs(events)[1][0]
    recorded = open_run(run_id)
    calls = [GateCall.from_json(line) for line in recorded.calls()]
    (lost, *_) = [call for call in calls if call.outcome == "CallLostError"]
    assert json.loads(lost.arguments or "") == [[3, "a"], {}]

    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    again_id, repeated = await program(again, replaying(recorded), "replay", restart=restart)
    assert outputs(repeated) == outputs(events)
    assert last(repeated).reason == "completed", last(repeated)
    made = [GateCall.from_json(line) for line in open_run(again_id).calls()]
    assert [(c.key, c.outcome, c.result) for c in made] == [
        (c.key, c.outcome, c.result) for c in calls
    ]


@pytest.mark.parametrize(("items", "replicas"), [(0, 1), (2, 1), (2, 2)])
async def test_a_stream_that_a_crash_cut_off_is_replayed_if_all_of_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, items: int, replicas: int
) -> None:
    reading = (
        "import tools, time; time.sleep(0.3); found = []\n"
        f"try:\n    for item in tools.break_off({items}):\n        found.append(item)\n"
        "except Exception as error:\n    print(found, type(error).__name__, error)"
    )
    cells = (CELLS[0], reading, tried("tools.count(1)"))
    first, again = tmp_path / "first", tmp_path / "again"
    more: dict[str, Any] = {"replicas": replicas, "restart": "on-failure"}
    run_id, events = await program(first, Scripted(steps(cells)), **more)
    assert f"{[*range(items)]} CallLostError break_off() was lost" in outputs(events)[1][0]
    recorded = open_run(run_id)

    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    again_id, repeated = await program(again, Scripted(steps(cells)), "replay", **more)
    if not items or replicas > 1:
        # The front has the items of a copy that ends.
        assert last(events).reason == last(repeated).reason == "completed"
        assert outputs(repeated) == outputs(events)
        return
    assert last(events).reason == "error"
    assert "2 items of streams" in recorded.meta["missing"]
    text = outputs(repeated)[1][0]
    assert "[] GateError replay: call 2 of 'lab-1' cannot be replayed" in text
    assert "the record lacks 2 of the items that break_off(2) streamed" in text
    assert [call.function for call in open_run(again_id).typed_calls()] == ["count"]


async def test_a_call_is_in_the_record_of_one_run_only(tmp_path: Path) -> None:
    scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local", python_packages=["numpy"]))
    await scoped.astart()
    try:
        library: Any = await scoped.aserve(write_interface(tmp_path), name="tools")
        session = await acreate_local_session(
            Workspace(libraries=[library]), workspace_dir=tmp_path / "w", name="lab"
        )
        await session.aexec("import tools; tools.count(1)")
        ids: list[str] = []
        for by in (10, 100):
            code = f"print(tools.count({by}))"
            agent = Scripted([Step(calls=(Call(tool="python", arguments={"code": code}),))])
            run = run_agent("look", provider=agent, session=session)
            with anyio.fail_after(60):
                assert "error" not in [event.type async for event in run]
            ids.append(run.run_id)
        await session.aclose()
    finally:
        await scoped.aterminate()
    made = [[json.loads(line["arguments"])[0] for line in open_run(i).calls()] for i in ids]
    assert made == [[[1], [10]], [[100]]]
    assert [run.run_id for run in open_run(ids[0]).siblings()] == ids


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


async def test_how_long_a_cell_runs_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = "import os, time; time.sleep(0.5 * os.path.exists('slow'))"
    run_id, events = await program(tmp_path / "first", Scripted(steps((wait,))))
    assert outputs(events)[0][0].startswith("[done in 0.")
    (tmp_path / "again" / "workspace").mkdir(parents=True)
    (tmp_path / "again" / "workspace" / "slow").touch()
    recorded = open_run(run_id)
    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    again_id, again = await program(tmp_path / "again", replaying(recorded), "replay")
    assert last(again).reason == "completed", last(again)
    assert outputs(again) != outputs(events)
    assert compare_runs(recorded, open_run(again_id)).equal


async def test_ids_of_calls_that_a_cell_prints_are_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = ("import tools; tools.count(); print(tools.last_call())", CELLS[3])
    run_id, events = await program(tmp_path / "first", Scripted(steps(cells)))
    recorded = open_run(run_id)
    made = next(recorded.typed_calls())
    assert outputs(events)[0][0].strip() == made.call
    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    again_id, again = await program(tmp_path / "again", replaying(recorded), "replay")
    assert last(again).reason == "completed", last(again)
    assert compare_runs(recorded, open_run(again_id)).equal


async def notebook_program(folder: Path, agent: Agent, provider: str = "local") -> Run:
    """A user's program with a notebook."""
    config = SandboxConfig(gpu=None, provider=provider, python_packages=["numpy"])
    async with ScopedSandbox(config) as scoped:
        library: Any = await scoped.aserve(write_interface(folder), name="tools")
        session = await acreate_notebook_session(
            workspace=Workspace(libraries=[library]),
            notebook_dir=folder / "out",
            workspace_dir=folder / "workspace",
        )
        async with session:
            run = run_agent("look", provider=agent, session=session)
            with anyio.fail_after(120):
                events = [event async for event in run]
    assert last(events).reason == "completed", last(events)
    return open_run(run.run_id)


async def test_a_notebook_is_replayed_with_the_edits_of_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Editing(Agent):
        """Names cells as their results did."""

        name = "editing"

        def check(self, request: AgentRequest) -> None:
            """Nothing is needed."""

        async def run(self, request: AgentRequest, context: AgentContext) -> None:
            """Add cells, change one and run it."""
            context.begin_turn()
            said: list[str] = []
            for number, code in enumerate(("import tools; print(tools.count(2))", "print(3)")):
                made = await context.call_tool(
                    f"a{number}", "add_code_cell", arguments={"source": code}
                )
                said.append(made.text)
            cell = said[0].partition("]")[0].removeprefix("[cell ")
            given = {"cell_id": cell, "source": "print(tools.count(5))"}
            assert (await context.call_tool("b", "edit_cell", arguments=given)).text != said[0]
            await context.call_tool("c", "delete_cell", arguments={"cell_id": cell})

    recorded = await notebook_program(tmp_path / "first", Editing())
    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    replayed = await notebook_program(tmp_path / "again", replaying(recorded), "replay")
    assert compare_runs(recorded, replayed).equal


async def test_past_the_record_the_live_interface_takes_over_with_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, first = await program(tmp_path / "first", Scripted(steps()))
    monkeypatch.setenv("SEER_REPLAY", str(open_run(run_id).folder))
    monkeypatch.setenv("SEER_REPLAY_LIVE", "local")
    more = (*CELLS, "print(tools.count(by=100))", "print(tools.grid(300).mean())", *MORE[1:])
    again_id, events = await program(tmp_path / "again", Scripted(steps(more)), "replay")
    assert outputs(events)[:4] == outputs(first)
    assert "'z': 107" in outputs(events)[4][0]
    assert outputs(events)[5] == ("150106.5\n", False)
    calls = list(open_run(again_id).typed_calls())
    recorded = ["count", "grid", "total", "fail", "count"]
    live = ["count", "grid", "parts", "keep", "keep", "handle.fetch", "handle.fetch"]
    assert [call.function for call in calls] == [*recorded, *live]
    assert [bool(call.handle) for call in calls[-3:]] == [False, True, True]


async def test_where_the_record_ends_the_live_agent_goes_on_with_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = (CELLS[0], "import os; print(os.urandom(8).hex())", CELLS[3])
    run_id, first = await program(tmp_path / "first", Scripted(steps(cells)))
    other = Scripted(
        [
            Step(calls=(Call(tool="python", arguments={"code": "print(tools.count(by=40))"}),)),
            Step(text="on my own"),
        ]
    )
    monkeypatch.setenv("SEER_REPLAY", str(open_run(run_id).folder))
    monkeypatch.setenv("SEER_REPLAY_LIVE", "local")
    agent = ReplayAgent(open_run(run_id), after=other)
    _, events = await program(tmp_path / "again", agent, "anything")
    assert outputs(events)[0] == outputs(first)[0]
    assert outputs(events)[1] != outputs(first)[1]
    assert "'z': 42" in outputs(events)[2][0]
    assert (last(events).reason, last(events).result) == ("completed", "on my own")


async def test_tools_of_a_served_interface_are_recorded_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = Scripted(
        [
            Step(
                calls=(
                    Call(tool="count", arguments={"by": 3}),
                    Call(tool="grid", arguments={"rows": 1}),
                )
            ),
            Step(text="done"),
        ]
    )

    async def with_tools(agent: Agent) -> tuple[str, list[Event]]:
        scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local", python_packages=["numpy"]))
        await scoped.astart()
        try:
            interface = write_interface(tmp_path / "code")
            tools: Any = await scoped.aserve(interface, expose_as="mcp")
            others: Any = await scoped.aserve(interface, expose_as="mcp")
            library: Any = await scoped.aserve(interface)
            module = await anyio.to_thread.run_sync(library.connect)
            await anyio.to_thread.run_sync(module.count, 1)
            elsewhere = run_agent(
                "x", provider=Scripted([Step(calls=(Call(tool="count"),))]), mcp_servers=[others]
            )
            first = [event async for event in elsewhere]
            run = run_agent("look", provider=agent, mcp_servers=[tools])
            with anyio.fail_after(60):
                events = [*first, *[event async for event in run]]
        finally:
            await scoped.aterminate()
        return run.run_id, events

    run_id, events = await with_tools(agent)
    recorded = open_run(run_id)
    callers = [[line["caller"] for line in run.calls()] for run in recorded.siblings()]
    assert callers == [["tools-in-a-script-3", "tools-mcp-2"], ["tools-mcp-1", "tools-mcp-1"]]
    assert '"z": 5' in outputs(events)[1][0], outputs(events)
    monkeypatch.setenv("SEER_REPLAY", str(recorded.folder))
    monkeypatch.setenv("SEER_RUNS", str(tmp_path / "replayed"))
    _, again = await with_tools(agent)
    assert outputs(again) == outputs(events)


async def ten_agents(folder: Path, agent: Callable[[int], Agent]) -> list[tuple[str, list[Event]]]:
    """A program with ten agents at once, in sessions of one name, on one sandbox."""
    interface = write_interface(folder)
    scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local", python_packages=["numpy"]))
    await scoped.astart()

    async def one(number: int) -> tuple[str, list[Event]]:
        run = run_agent("look", provider=agent(number), session=sessions[number])
        return run.run_id, [event async for event in run]

    sessions: list[LocalSession] = []
    try:
        with anyio.fail_after(200):
            library: Any = await scoped.aserve(interface, name="tools")
            for number in range(10):
                workspace = Workspace(libraries=[library])
                where = folder / f"w{number}"
                sessions.append(
                    await acreate_local_session(workspace, workspace_dir=where, name="same name")
                )
            return await asyncio.gather(*(one(number) for number in range(10)))
    finally:
        for session in sessions:
            await session.aclose()
        await scoped.aterminate()


def adding(number: int) -> Agent:
    code = f"import tools\nfor n in range(5):\n    print(tools.total([{number}.0, n]))"
    return Scripted([Step(calls=(Call(tool="python", arguments={"code": code}),))])


async def test_ten_agents_on_one_sandbox_have_their_own_records_and_are_replayed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await ten_agents(tmp_path / "first", adding)
    for number, (run_id, events) in enumerate(done):
        assert not outputs(events)[0][1], outputs(events)
        calls = [GateCall.from_json(line) for line in open_run(run_id).calls()]
        given = [json.loads(call.arguments or "")[0][0] for call in calls]
        assert given == [[float(number), n] for n in range(5)]
    named = open_run(done[3][0])
    monkeypatch.setenv("SEER_REPLAY", str(named.folder))
    monkeypatch.setenv("SEER_RUNS", str(tmp_path / "replayed"))
    again = await ten_agents(
        tmp_path / "again", lambda _: ReplayAgent.from_argument(str(named.folder))
    )
    assert [outputs(events) for _, events in again] == [outputs(events) for _, events in done]
    assert {last(events).reason for _, events in again} == {"completed"}


async def test_to_check_a_replay_uses_up_no_recorded_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEER_RUNS", str(tmp_path / "runs"))

    async def said(agent: Agent) -> tuple[Path, str]:
        run = run_agent(task="the same", provider=agent, session=None)
        texts = [event.text async for event in run if isinstance(event, Text)]
        assert run.folder is not None
        return run.folder, texts[0]

    first, _ = await said(Scripted([Step(text="one")]))
    await said(Scripted([Step(text="two")]))
    request = AgentRequest(
        run_id="", provider="replay", model=None, system_prompt="", task="the same"
    )
    monkeypatch.setenv("SEER_RUNS", str(tmp_path / "again"))
    for _ in range(3):
        agent = ReplayAgent.from_argument(str(first))
        agent.check(request)
        agent.model_name(request)
    again = [(await said(ReplayAgent.from_argument(str(first))))[1] for _ in range(2)]
    assert again == ["one", "two"]


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
        with pytest.raises(Exception, match="a replay cannot run"):
            await scoped.aexec("id")
        interface = tmp_path / "tools.py"
        interface.write_text("this is not even Python")
        library: Any = await scoped.aserve(interface, name="tools")
        module = library.connect()
        with pytest.raises(GateError, match="no more calls|is not the recorded one"):
            module.count(99)
    finally:
        await scoped.aterminate()


KILLED = """
import os, sys
from seer.environment import SandboxConfig, ScopedSandbox
scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local", python_packages=["numpy"])).start()
scoped.serve(sys.argv[1], name="tools")
print("ready", flush=True)
sys.stdin.read()
"""


async def test_a_killed_replay_leaves_no_folder(tmp_path: Path) -> None:
    run_id, _ = await program(tmp_path / "first", Scripted(steps(CELLS[:1])))
    await asyncio.to_thread(kill_a_replay, open_run(run_id), tmp_path)


def kill_a_replay(run: Run, folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(write_interface(folder / "again"))],
        env={**os.environ, "SEER_REPLAY": str(run.folder), "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdout, process.stdin:
        assert process.stdout.readline() == b"ready\n"
        assert list(folder.glob("seer-replay-*"))
        process.kill()
        process.wait()
    wait_until(lambda: not list(folder.glob("seer-replay-*")), "the end of the folder")
