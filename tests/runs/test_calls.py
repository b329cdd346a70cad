"""A run has exactly its own calls, in their order, or says which are missing."""

import json
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.errors import RecordError
from seer.events import ErrorEvent, Event
from seer.execution import LocalSession, acreate_local_session
from seer.harness import Call, RunFinished, Scripted, Step, run_agent
from seer.rpc._control import GateControl
from seer.runs import Run, RunRecord, open_run
from seer.workspace import Workspace

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

INTERFACE = """
import os
from collections.abc import Iterator
import numpy as np

@expose
def small(n: int) -> int:
    return n

@expose
def array(n: int) -> np.ndarray:
    return np.full(100_000, float(n))

@expose
def leave() -> None:
    os._exit(3)
"""


class Place:
    """A served interface and a session that has it."""

    def __init__(self, scoped: ScopedSandbox, library: Any, session: LocalSession) -> None:
        self.scoped = scoped
        self.library = library
        self.session = session

    async def run(self, code: str) -> tuple[Run, list[Event]]:
        """Have an agent run code."""
        agent = Scripted([Step(calls=(Call(tool="python", arguments={"code": code}),))])
        run = run_agent("look", provider=agent, session=self.session)
        with anyio.fail_after(120):
            events = [event async for event in run]
        return open_run(run.run_id), events

    @property
    def record(self) -> Path:
        """Where the gate keeps what was not taken yet, on this host."""
        served = self.scoped._served["tools"]  # pyright: ignore[reportPrivateUsage]
        found = self.scoped.machine.socket_path(f"{served.folder}/record")
        assert found is not None
        return found


@asynccontextmanager
async def place(folder: Path, **options: Any) -> AsyncGenerator[Place]:
    file = folder / "tools.py"
    file.write_text(INTERFACE)
    scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local", python_packages=["numpy"]))
    await scoped.astart()
    try:
        library: Any = await scoped.aserve(file, name="tools", **options)
        session = await acreate_local_session(
            Workspace(libraries=[library]), workspace_dir=folder / "w", name="lab"
        )
        try:
            yield Place(scoped, library, session)
        finally:
            await session.aclose()
    finally:
        await scoped.aterminate()


def arguments(run: Run) -> list[Any]:
    return [json.loads(line["arguments"])[0][0] for line in run.calls()]


def last(events: list[Event]) -> RunFinished:
    assert isinstance(events[-1], RunFinished)
    return events[-1]


async def test_a_run_costs_its_own_calls_and_none_that_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    ask = GateControl._ask  # pyright: ignore[reportPrivateUsage]

    async def counting(
        self: GateControl, method: str, path: str, value: Mapping[str, Any] | None = None
    ) -> Any:
        nonlocal read
        found = await ask(self, method, path, value)
        read += len(found.get("lines", ()))
        return found

    monkeypatch.setattr(GateControl, "_ask", counting)
    async with place(tmp_path) as here:
        first, _ = await here.run("import tools\nfor n in range(2000): tools.small(n)")
        assert read == 2000
        second, events = await here.run("for n in range(3): tools.small(-n)")
    assert read == 2003
    assert arguments(first) == [*range(2000)]
    assert arguments(second) == [0, -1, -2]
    assert last(events).reason == "completed"
    assert "missing" not in second.meta


async def test_a_run_waits_for_its_last_arrays_however_slowly_they_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seer.runs._gate_calls.LONGEST", 0.2, raising=False)
    blob = RunRecord.blob

    def slow(self: RunRecord, data: bytes) -> str:
        if len(data) > 100_000:
            time.sleep(0.05)
        return blob(self, data)

    monkeypatch.setattr(RunRecord, "blob", slow)
    async with place(tmp_path) as here:
        first, events = await here.run("import tools\nfor n in range(30): tools.array(n)")
        second, _ = await here.run("tools.array(99)")
        assert [path for path in here.record.rglob("*") if path.is_file()] == []
    assert last(events).reason == "completed", last(events)
    assert arguments(first) == [*range(30)]
    assert arguments(second) == [99]
    first.verify()


async def test_calls_that_cannot_be_written_down_fail_the_run_and_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with place(tmp_path) as here:
        good, _ = await here.run("import tools\ntools.small(1)")
        # As on a full disk: nothing can be written where the gate keeps its record.
        for path in here.record.iterdir():
            path.rmdir()
        here.record.rmdir()
        here.record.write_text("")
        bad, events = await here.run("for n in range(7): tools.small(n)")
    assert arguments(good) == [1]
    assert arguments(bad) == []
    assert (bad.status, last(events).reason) == ("error", "error")
    assert "7 calls could not be recorded" in bad.meta["missing"]
    assert "7 calls could not be recorded" in last(events).message
    error = next(event for event in events if isinstance(event, ErrorEvent))
    assert error.kind == "record"
    assert "missing from the record" in caplog.text


async def test_a_run_whose_last_event_cannot_be_written_ends_with_an_error_and_follows_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RunRecord.event

    def refuse(self: RunRecord, data: Mapping[str, Any]) -> None:
        if data["type"] == "run_finished":
            raise RecordError("the disk is full")
        write(self, data)

    monkeypatch.setattr(RunRecord, "event", refuse)
    async with place(tmp_path) as here:
        agent = Scripted([Step(calls=(Call(tool="python", arguments={"code": "import tools"}),))])
        run = run_agent("look", provider=agent, session=here.session)
        events: list[Event] = []
        with pytest.raises(RecordError, match="the disk is full"):
            async for event in run:
                events.append(event)
        assert open_run(run.run_id).status == "error"
        assert (last(events).reason, last(events).message) == ("error", "the disk is full")
        assert [path for path in here.record.glob("*") if path.name != "ring"] == []


async def test_a_call_that_does_not_fit_on_the_disk_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blob = RunRecord.blob

    def full(self: RunRecord, data: bytes) -> str:
        if len(data) > 100_000:
            raise RecordError("the disk is full")
        return blob(self, data)

    monkeypatch.setattr(RunRecord, "blob", full)
    code = "import tools\ntools.small(1)\ntools.array(2)"
    agent = Scripted([Step(calls=(Call(tool="python", arguments={"code": code}),))])
    async with place(tmp_path) as here:
        run = run_agent("look", provider=agent, session=here.session)
        with pytest.raises(RecordError, match="the disk is full"):
            async for _ in run:
                pass
    found = open_run(run.run_id)
    found.verify()
    assert (found.status, found.meta["message"]) == ("error", "the disk is full")
    assert arguments(found) == [1]
    # The exception says it all; the log does not repeat it.
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]


async def test_a_crash_in_a_run_costs_the_call_that_ran_and_no_other(tmp_path: Path) -> None:
    async with place(tmp_path, restart="on-failure") as here:
        code = """
import tools
for n in range(50): tools.small(n)
import time
time.sleep(0.2)
try:
    tools.leave()
except Exception as error:
    print(type(error).__name__)
while True:
    try:
        tools.small(50)
        break
    except Exception as error:
        print(type(error).__name__)
"""
        run, events = await here.run(code)
    assert last(events).reason == "completed", last(events)
    calls = list(run.calls())
    functions = [line["function"] for line in calls]
    assert functions == ["small"] * 50 + ["leave", "small"]
    assert calls[50]["outcome"] == "CallLostError"


async def test_a_reload_in_a_run_costs_no_call(tmp_path: Path) -> None:
    runs: list[Run] = []
    async with place(tmp_path) as here:
        code = "import tools\nfor n in range(3000): tools.small(n)"
        async with anyio.create_task_group() as group:

            async def one() -> None:
                runs.append((await here.run(code))[0])

            group.start_soon(one)
            for _ in range(3):
                await here.scoped.areload("tools")
    assert arguments(runs[0]) == [*range(3000)]
    assert "missing" not in runs[0].meta


async def test_calls_of_several_interfaces_are_in_the_run_each_with_its_interface(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as here:
        others: Any = await here.scoped.aserve(tmp_path / "tools.py", name="others", replicas=2)
        both = await acreate_local_session(
            Workspace(libraries=[here.library, others]), workspace_dir=tmp_path / "both", name="lab"
        )
        code = "import tools, others\nfor n in range(20): tools.small(n), others.array(-n)"
        run, events = await Place(here.scoped, here.library, both).run(code)
        await both.aclose()
    assert last(events).reason == "completed", last(events)
    for interface, sign in (("tools", 1), ("others", -1)):
        found = [line for line in run.calls() if line["interface"] == interface]
        given = [json.loads(line["arguments"])[0][0] for line in found]
        assert given == [sign * n for n in range(20)]
    assert len(list(run.calls())) == 40


async def test_calls_of_a_script_beside_two_runs_are_in_one_of_them(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        other = await acreate_local_session(
            Workspace(libraries=[here.library]), workspace_dir=tmp_path / "w2", name="lab"
        )
        beside = Place(here.scoped, here.library, other)
        module = await anyio.to_thread.run_sync(here.library.connect)
        runs: dict[int, Run] = {}

        async def one(which: Place, number: int) -> None:
            code = f"import tools\nfor n in range(300): tools.small(n + {number})"
            runs[number] = (await which.run(code))[0]

        async with anyio.create_task_group() as group:
            group.start_soon(one, here, 1000)
            group.start_soon(one, beside, 2000)
            for n in range(20):
                await anyio.to_thread.run_sync(module.small, n)
        await other.aclose()
        after, _ = await here.run("tools.small(7)")
    found = {number: arguments(run) for number, run in runs.items()}
    own = {number: [n for n in given if n >= 1000] for number, given in found.items()}
    assert own == {number: [number + n for n in range(300)] for number in (1000, 2000)}
    script = [n for given in (*found.values(), arguments(after)) for n in given if n < 100]
    assert sorted(script) == sorted([*range(20), 7])


async def test_a_run_that_outlives_its_sandbox_says_that_calls_may_be_missing(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as here:
        cells = ("import tools; tools.small(1)", "1 + 1")
        agent = Scripted(
            [Step(calls=(Call(tool="python", arguments={"code": code}),)) for code in cells]
        )
        run = run_agent("look", provider=agent, session=here.session)
        results = 0
        events: list[Event] = []
        async for event in run:
            events.append(event)
            results += event.type == "tool_result"
            if event.type == "tool_result" and results == 1:
                await here.scoped.aterminate()
        assert last(events).reason == "error"
        assert "missing" in open_run(run.run_id).meta
