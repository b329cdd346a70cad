"""A run has exactly its own calls, in their order, or says which are missing."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.errors import PauseUnsupportedError, RecordError
from seer.events import ErrorEvent, Event
from seer.execution import (
    LocalSession,
    Session,
    acreate_cli_session,
    acreate_local_session,
    acreate_notebook_session,
)
from seer.harness import AgentRun, Call, RunFinished, Scripted, Step, ToolResult, run_agent
from seer.rpc._control import GateControl
from seer.runs import Run, RunRecord, new_run_id, open_run
from seer.runs._gate_calls import CallCollector, Followed
from seer.workspace import Workspace
from tests.waiting import await_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

INTERFACE = """
import os
import threading
from collections.abc import Iterator
import numpy as np

begun, released = threading.Event(), threading.Event()

@expose(max_concurrency=4)
def hold() -> None:
    begun.set()
    released.wait()

@expose(max_concurrency=4)
def wait_for_hold() -> None:
    begun.wait()

@expose(max_concurrency=4)
def release() -> None:
    released.set()

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

    def __init__(self, scoped: ScopedSandbox, library: Any, session: Session) -> None:
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
        """The folder on this host in which the gate keeps lines that were not taken yet."""
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


def functions(run: Run) -> list[str]:
    return [line["function"] for line in run.calls()]


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
    # All arrays together take longer than this; no single one does, also on a busy machine.
    monkeypatch.setattr("seer.runs._gate_calls.STALLED", 5.0)
    blob = RunRecord.blob

    def slow(self: RunRecord, data: bytes) -> str:
        if len(data) > 100_000:
            time.sleep(0.2)
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


IN_THE_BACKGROUND = """
import threading, tools
thread = threading.Thread(target=tools.hold)
thread.start()
tools.wait_for_hold()
"""


async def test_a_call_that_outlives_its_run_is_named_there_and_in_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seer.runs._gate_calls.OUTSTANDING", 0.2)
    async with place(tmp_path) as here:
        first, events = await here.run(IN_THE_BACKGROUND)
        second, others = await here.run("tools.small(1)")
        third, _ = await here.run("tools.release()\nthread.join()")
    assert last(events).reason == "error"
    assert "had not ended 0.2 s after the run: hold (1)" in last(events).message
    assert functions(first) == ["wait_for_hold"]
    assert (functions(second), last(others).reason) == (["small"], "completed")
    assert functions(third) == ["release"]


async def test_the_end_of_a_run_waits_for_calls_that_end_soon(tmp_path: Path) -> None:
    code = IN_THE_BACKGROUND + "threading.Timer(0.3, tools.release).start()"
    async with place(tmp_path) as here:
        first, events = await here.run(code)
        second, _ = await here.run("tools.small(1)")
    assert last(events).reason == "completed", last(events)
    assert "hold" in functions(first)
    # The timer's own call may have been made after the run.
    assert {"small"} <= set(functions(second)) <= {"small", "release"}


CALLS_ON = """
import itertools, pathlib, time, tools

def call_on():
    for number in itertools.count():
        tools.small(number)
        pathlib.Path("calling").touch()
        time.sleep(0.01)

try:
    call_on()
except KeyboardInterrupt:
    call_on()  # until it is interrupted again, a second later
"""


async def session_of(kind: str, library: Any, folder: Path) -> tuple[Session, Call]:
    """A session of this kind, and the tool call that runs `CALLS_ON` in it."""
    workspace, where = Workspace(libraries=[library]), folder / "of-kind"
    if kind == "cli":
        command = f"python - <<'END'\n{CALLS_ON}\nEND"
        session = await acreate_cli_session(workspace=workspace, workspace_dir=where)
        return session, Call(tool="shell", arguments={"command": command})
    if kind == "notebook":
        session = await acreate_notebook_session(
            workspace=workspace, workspace_dir=where, notebook_dir=folder / "notebook"
        )
        return session, Call(tool="add_code_cell", arguments={"source": CALLS_ON})
    session = await acreate_local_session(workspace, where)
    return session, Call(tool="python", arguments={"code": CALLS_ON})


async def consume(run: AgentRun) -> None:
    async for _ in run:
        pass


@pytest.mark.parametrize("kind", ["local", "notebook", "cli"])
async def test_calls_that_a_cell_makes_until_it_is_interrupted_are_in_its_cancelled_run(
    tmp_path: Path, kind: str
) -> None:
    async with place(tmp_path) as here:
        session, call = await session_of(kind, here.library, tmp_path)
        async with session:
            run = run_agent("x", provider=Scripted([Step(calls=[call])]), session=session)
            consuming = asyncio.create_task(consume(run))
            await await_until((tmp_path / "of-kind" / "calling").exists, "the cell calls")
            consuming.cancel()
            await asyncio.wait([consuming])
            after = run_agent("x", provider=Scripted([Step(text="nothing")]), session=session)
            await consume(after)
    first = open_run(run.run_id)
    assert functions(open_run(after.run_id)) == []
    assert arguments(first).count(0) == 2, "it called on after the first interrupt"
    assert (first.meta["status"], first.meta.get("missing")) == ("cancelled", None)


@pytest.mark.parametrize("end", ["cancelled", "limit"])
async def test_a_run_that_does_not_complete_stops_the_cell_that_its_agent_left_running(
    tmp_path: Path, end: str
) -> None:
    async with place(tmp_path) as here:
        left = Call(tool="python", arguments={"code": CALLS_ON, "wait": 0})
        waits = Call(tool="get_result", arguments={"wait": 600})
        agent = Scripted([Step(calls=[left]), Step(calls=[waits]), Step(text="done")])
        run = run_agent("x", provider=agent, session=here.session)
        async for event in run:
            if isinstance(event, ToolResult) and event.name == "python":
                await await_until((tmp_path / "w" / "calling").exists, "the cell calls")
                if end == "cancelled":
                    break
                run.conclude()
        await run.aclose()
        after, _ = await here.run("tools.small(-1)")
    first = open_run(run.run_id)
    assert arguments(after) == [-1]
    assert arguments(first).count(0) == 2, "it called on after the first interrupt"
    assert (first.meta["status"], first.meta.get("missing")) == (end, None)


WAITS_FOR_A_FILE = """
import pathlib, time
pathlib.Path("waiting").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.01)
print("gone")
"""


async def test_a_cell_that_its_agent_left_running_goes_on_after_a_completed_run(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as here:
        left = Call(tool="python", arguments={"code": WAITS_FOR_A_FILE, "wait": 0})
        run = run_agent("x", provider=Scripted([Step(calls=[left])]), session=here.session)
        await consume(run)
        assert run.result is not None and run.result.reason == "completed"
        await here.session.awrite_file("go", b"")
        [result_id] = await here.session.aresult_ids()
        with anyio.fail_after(60):
            result = await here.session.aresult(result_id, wait=None)
    assert (result.status, result.text) == ("ok", "gone\n")


async def test_a_cancelled_run_does_not_stop_the_cell_of_another_run_in_its_session(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as here:
        beside = asyncio.create_task(here.run(WAITS_FOR_A_FILE))
        await await_until((tmp_path / "w" / "waiting").exists, "the cell runs")
        queued = Call(tool="python", arguments={"code": "import tools\ntools.small(1)", "wait": 0})
        waits = Call(tool="get_result", arguments={"wait": 600})
        agent = Scripted([Step(calls=[queued]), Step(calls=[waits])])
        run = run_agent("x", provider=agent, session=here.session)
        async for event in run:
            if isinstance(event, ToolResult):
                break
        await run.aclose()
        await here.session.awrite_file("go", b"")
        other, events = await beside
    cancelled = open_run(run.run_id)
    assert (cancelled.meta["status"], cancelled.meta.get("missing")) == ("cancelled", None)
    assert last(events).reason == "completed", last(events)
    assert functions(other) == functions(cancelled) == [], "what was queued never ran"


@pytest.mark.parametrize("wait", [0, 50])
async def test_a_run_whose_cell_cannot_be_stopped_names_it_and_is_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: float
) -> None:
    async def nothing(self: LocalSession, execution: object) -> None:
        """Take no notice, as a machine that hangs."""

    monkeypatch.setattr(LocalSession, "_send_interrupt", nothing)
    monkeypatch.setattr(LocalSession, "_kill", nothing)
    monkeypatch.setattr("seer.execution._turns.GRACE", 1.0)
    async with place(tmp_path) as here:
        call = Call(tool="python", arguments={"code": WAITS_FOR_A_FILE, "wait": wait})
        waits = Call(tool="get_result", arguments={"wait": 600})
        agent = Scripted([Step(calls=[call]), Step(calls=[waits]), Step(text="done")])
        run = run_agent("x", provider=agent, session=here.session)
        consuming = asyncio.create_task(consume(run))
        await await_until((tmp_path / "w" / "waiting").exists, "the cell runs")
        run.conclude()
        with anyio.fail_after(60):
            await consuming
        await here.session.awrite_file("go", b"")
    assert run.result is not None and run.result.reason == "error"
    assert "'lab': e1" in run.result.message
    assert "e1" in open_run(run.run_id).meta["missing"]


async def test_a_run_that_begins_while_its_sandbox_is_paused_says_that_it_records_nothing(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as here:
        try:
            await here.scoped.apause()
        except PauseUnsupportedError as error:
            pytest.skip(str(error))
        agent = Scripted([Step(calls=(Call(tool="python", arguments={"code": "import tools"}),))])
        run = run_agent("look", provider=agent, session=here.session)
        events = [event async for event in run]
        await here.scoped.aresume()
        again, after = await here.run("import tools\ntools.small(1)")
    assert last(events).reason == "error"
    assert "is paused" in last(events).message
    assert (arguments(again), last(after).reason) == ([1], "completed")


class FakeFollow:
    """A follow with one call that was made before it."""

    dropped = lost = 0
    why = ""
    running: Mapping[str, int] = {}
    closed = False

    async def add(self, callers: Sequence[str]) -> int:
        return 0

    async def batches(self) -> AsyncIterator[list[tuple[int, dict[str, Any]]]]:
        line: dict[str, Any] = {"caller": "lab-1", "function": "small", "outcome": "ok"}
        yield [(1, {**line, "arguments": [], "result": 1, "time": 12.5})]
        await anyio.sleep_forever()

    async def read(self, file: int | str) -> bytes:
        return b""

    async def flush(self) -> int:
        return 1

    async def close(self) -> None:
        self.closed = True


class FakeGate:
    """A gate whose answer can be delayed."""

    name = "tools"

    def __init__(self) -> None:
        self.found = FakeFollow()
        self.asked = anyio.Event()
        self.answer = anyio.Event()

    def about(self) -> Mapping[str, Any]:
        return {}

    async def weights(self) -> Mapping[str, Any]:
        return {}

    async def follow(self, callers: Sequence[str], *, prefix: str = "") -> FakeFollow:
        self.asked.set()
        await self.answer.wait()
        return self.found


@pytest.fixture
def record(tmp_path: Path) -> Generator[RunRecord]:
    found = RunRecord.create(tmp_path, new_run_id(), meta={})
    yield found
    found.close("completed")


async def test_a_follow_ends_although_its_run_was_cancelled_before_it_began(
    record: RunRecord,
) -> None:
    gate = FakeGate()
    collector = CallCollector(record)
    following = asyncio.create_task(collector.follow([Followed(gate, lambda: ["lab-1"])]))
    await gate.asked.wait()
    following.cancel()
    await asyncio.wait([following])
    gate.answer.set()
    assert await collector.stop() == ""
    assert gate.found.closed
    # The gate has handed over the earlier call, so no other run would record it.
    assert functions(open_run(record.run_id, record.folder.parent)) == ["small"]


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "of an older version"])
async def test_two_gates_of_one_name_keep_their_own_descriptions_and_models(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, numbered: bool
) -> None:
    gates = [FakeGate(), FakeGate()]
    for number, (gate, model) in enumerate(zip(gates, ("base", "tuned"), strict=True), 1):
        models = [{"name": model, "commit": "1"}]
        about: dict[str, Any] = {"schema": {"of": model}, "models": models}
        about |= {"served": number} if numbered else {}
        monkeypatch.setattr(gate, "about", about.copy)
        gate.answer.set()
    collector = CallCollector(record)
    await collector.follow([Followed(gate, lambda: ["lab-1"]) for gate in gates])
    assert await collector.stop() == ""
    found = open_run(record.run_id, record.folder.parent)
    schemas = {key: about["schema"] for key, about in found.info.interfaces.items()}
    assert schemas == {"tools": {"of": "base"}, "tools#2": {"of": "tuned"}}
    made = {(call.interface, call.served, call.model) for call in found.typed_calls()}
    first, second = (1, 2) if numbered else (0, 0)
    assert made == {("tools", first, "base@1"), ("tools", second, "tuned@1")}


async def test_a_follow_ends_although_its_beginning_could_not_be_recorded(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = FakeGate()
    gate.answer.set()
    gate.found.dropped = 3
    collector = CallCollector(record)

    def full(**changes: Any) -> None:
        if "calls_before" in changes:
            raise RecordError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(record, "update", full)
        with pytest.raises(RecordError, match="the disk is full"):
            await collector.follow([Followed(gate, lambda: ["lab-1"])])
        await collector.stop()
    assert gate.found.closed


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
    # The exception says everything; the log does not repeat it.
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
    assert functions(run) == ["small"] * 50 + ["leave", "small"]
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
