"""Running an agent: events, call forms, ending early."""

import asyncio
import errno
import json
import os
import re
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.types import ImageContent

from seer.errors import ConfigError, RecordError, ScriptError, ToolServerError
from seer.events import Event, RunStarted, event_from_json
from seer.harness import (
    Agent,
    AgentContext,
    AgentRequest,
    Call,
    Expect,
    RunFinished,
    Scripted,
    Step,
    Text,
    ToolCall,
    ToolResult,
    run_agent,
)
from seer.runs import Run, open_run, runs_root
from seer.workspace import Library, Workspace


async def collect(run: Any) -> list[Event]:
    with anyio.fail_after(120):
        return [event async for event in run]


def adding(*, text: str = "let me add") -> Scripted:
    return Scripted(
        [
            Step(text=text, calls=(Call(tool="add", arguments={"a": 1, "b": 2}, save="sum"),)),
            Step(text="it is {sum.text}"),
        ]
    )


async def test_a_run_yields_typed_events_in_order(calculator: MCPServer) -> None:
    events = await collect(run_agent("add", {"calc": calculator}, provider=adding()))
    assert [event.type for event in events] == [
        "run_started",
        "text",
        "tool_call",
        "tool_result",
        "text",
        "run_finished",
    ]
    assert [event.seq for event in events] == list(range(6))
    assert [event.turn for event in events] == [0, 1, 1, 1, 2, 2]
    started, finished = events[0], events[-1]
    assert isinstance(started, RunStarted)
    assert started.task == "add"
    assert {tool.name for tool in started.tools} == {"add", "broken"}
    assert isinstance(finished, RunFinished)
    assert (finished.reason, finished.result, finished.tool_calls) == ("completed", "it is 3", 1)


async def test_an_image_that_cannot_be_decoded_does_not_end_the_run() -> None:
    server: MCPServer = MCPServer("camera")

    def look() -> list[ImageContent]:
        """Look."""
        return [ImageContent(data="abc", mime_type="image/png")]

    server.tool()(look)
    agent = Scripted([Step(calls=(Call(tool="look"),)), Step(text="nothing to see")])
    events = await collect(run_agent("look", {"camera": server}, provider=agent))
    (result,) = [event for event in events if isinstance(event, ToolResult)]
    assert result.text == "[an image that is not base64]"
    assert isinstance(events[-1], RunFinished) and events[-1].reason == "completed"


async def test_lone_surrogates_of_a_tool_do_not_reach_the_vendor() -> None:
    server: MCPServer = MCPServer("torn")

    def read() -> str:
        """Read."""
        return "a\ud800b"

    server.tool()(read)
    agent = Scripted([Step(calls=(Call(tool="read"),)), Step(text="done")])
    events = await collect(run_agent("read", {"torn": server}, provider=agent))
    (result,) = [event for event in events if isinstance(event, ToolResult)]
    assert result.text == "a?b"


async def test_events_survive_json(calculator: MCPServer) -> None:
    for event in await collect(run_agent("add", {"calc": calculator}, provider=adding())):
        assert event_from_json(json.loads(json.dumps(event.to_json()))) == event


async def test_the_record_holds_every_event(calculator: MCPServer) -> None:
    run = run_agent("add", {"calc": calculator}, provider=adding(), name="sums")
    events = await collect(run)
    record = open_run(run.run_id)
    assert [event_from_json(data) for data in record.events()] == events
    assert record.status == "completed"
    assert record.meta["name"] == "sums"
    record.verify()


async def test_secrets_of_the_environment_and_of_dotenv_are_in_no_record(
    calculator: MCPServer, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("LAB_PASSPHRASE=correct-horse-battery\n")
    monkeypatch.setenv("OTHER_TOKEN", "tok-0123456789")
    words = "leak: correct-horse-battery and tok-0123456789"
    run = run_agent(words, {"calc": calculator}, provider=adding(text=words), name=words)
    await collect(run)
    assert run.folder is not None
    for path in run.folder.rglob("*"):
        if path.is_file():
            assert b"horse" not in path.read_bytes(), path
            assert b"tok-0123456789" not in path.read_bytes(), path


async def test_without_a_record_nothing_is_written(calculator: MCPServer, runs_folder: Any) -> None:
    run = run_agent("add", {"calc": calculator}, provider=adding(), record=False)
    await collect(run)
    assert run.folder is None
    assert not runs_folder.exists()


async def test_a_record_that_cannot_be_written_ends_the_run_and_says_so(
    calculator: MCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    written: list[bytes] = []

    def full(fd: int, data: bytes) -> int:
        if data.startswith(b'{"hash"'):
            written.append(data)
            if len(written) > 3:
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    run = run_agent("add", {"calc": calculator}, provider=adding())
    seen: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RecordError, match="the disk is full: 3 events"):
            async for event in run:
                seen.append(event.type)
    assert seen[-2:] == ["error", "run_finished"]
    assert Run(runs_root() / run.run_id).status == "error"


async def test_a_failing_tool_is_a_result_and_the_run_goes_on(calculator: MCPServer) -> None:
    steps = [Step(calls=(Call(tool="broken", expect=Expect(error=True)),)), Step(text="oh well")]
    events = await collect(run_agent("x", {"calc": calculator}, provider=Scripted(steps)))
    results = [event for event in events if isinstance(event, ToolResult)]
    assert results[0].is_error
    assert isinstance(events[-1], RunFinished)
    assert events[-1].reason == "completed"


async def test_an_unknown_tool_is_refused(calculator: MCPServer) -> None:
    steps = [
        Step(calls=(Call(tool="Bash", arguments={"command": "id"}, expect=Expect(error=True)),))
    ]
    events = await collect(run_agent("x", {"calc": calculator}, provider=Scripted(steps)))
    call = next(event for event in events if isinstance(event, ToolCall))
    result = next(event for event in events if isinstance(event, ToolResult))
    assert call.server is None
    assert "no tool named 'Bash'" in result.text


async def test_a_failed_expectation_raises_and_is_recorded(calculator: MCPServer) -> None:
    call = Call(tool="add", arguments={"a": 1, "b": 2}, expect=Expect(contains="4"))
    run = run_agent("x", {"calc": calculator}, provider=Scripted([Step(calls=(call,))]))
    with pytest.raises(ScriptError, match="'4' is not in the result: 3"):
        await collect(run)
    record = open_run(run.run_id)
    assert record.status == "error"
    assert [event["type"] for event in record.events()][-2:] == ["error", "run_finished"]


async def test_breaking_off_at_a_tool_call_prevents_it(calculator: MCPServer) -> None:
    done: list[int] = []

    def effect() -> str:
        """Leaves a mark."""
        done.append(1)
        return "done"

    calculator.tool()(effect)
    run = run_agent(
        "x", {"calc": calculator}, provider=Scripted([Step(calls=(Call(tool="effect"),))])
    )
    async for event in run:
        if isinstance(event, ToolCall):
            break
    await run.aclose()
    assert done == []
    assert open_run(run.run_id).status == "cancelled"


async def test_an_exception_in_the_consumer_closes_the_record(calculator: MCPServer) -> None:
    run = run_agent("x", {"calc": calculator}, provider=adding())
    with pytest.raises(ZeroDivisionError):
        try:
            async for _ in run:
                _ = 1 / 0
        finally:
            await run.aclose()
    assert open_run(run.run_id).status == "cancelled"


async def test_cancelling_the_consumer_ends_the_run(calculator: MCPServer) -> None:
    waiting = asyncio.Event()
    release = asyncio.Event()

    class Stuck(Agent):
        name = "stuck"

        def check(self, request: AgentRequest) -> None: ...

        async def run(self, request: AgentRequest, context: AgentContext) -> None:
            context.begin_turn()
            context.emit(Text(text="thinking forever"))
            await release.wait()

    run = run_agent("x", {"calc": calculator}, provider=Stuck())

    async def consume() -> None:
        async for event in run:
            if isinstance(event, Text):
                waiting.set()

    task = asyncio.create_task(consume())
    with anyio.fail_after(30):
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert open_run(run.run_id).status == "cancelled"


class Ended(Agent):
    """Says something, and notes that it was ended."""

    name = "ended"

    def __init__(self) -> None:
        self.over = threading.Event()

    def check(self, request: AgentRequest) -> None: ...

    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        context.begin_turn()
        context.emit(Text(text="here I am"))
        try:
            await asyncio.sleep(25)
        finally:
            self.over.set()


async def test_leaving_the_loop_ends_the_run_while_the_program_goes_on(
    calculator: MCPServer,
) -> None:
    agent = Ended()
    # As in a notebook: the run keeps its name, and the event loop does not end.
    run = run_agent("x", {"calc": calculator}, provider=agent)
    async for event in run:
        if isinstance(event, Text):
            break
    assert await asyncio.to_thread(agent.over.wait, 20)
    await run.aclose()
    assert open_run(run.run_id).status == "cancelled"


def test_a_cancelled_cell_ends_the_run_though_nothing_wakes_its_loop(
    calculator: MCPServer,
) -> None:
    # A kernel cancels a cell's task in its signal handler, which does not wake a waiting loop.
    agent = Ended()
    run = run_agent("x", {"calc": calculator}, provider=agent)

    async def cell() -> None:
        task = asyncio.current_task()
        assert task is not None

        def cancel(number: int, frame: FrameType | None) -> None:
            task.cancel()

        signal.signal(signal.SIGALRM, cancel)
        async for event in run:
            if isinstance(event, Text):
                signal.setitimer(signal.ITIMER_REAL, 0.5)

    before = signal.getsignal(signal.SIGALRM)
    try:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cell())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert open_run(run.run_id).status == "cancelled"


async def test_fifty_runs_at_once_do_not_mix(calculator: MCPServer) -> None:
    async def one(number: int) -> tuple[str, str]:
        agent = adding(text=f"run {number}")
        run = run_agent("x", {"calc": calculator}, provider=agent)
        events = await collect(run)
        first = next(event for event in events if isinstance(event, Text))
        return run.run_id, first.text

    results = await asyncio.gather(*(one(number) for number in range(50)))
    assert [text for _, text in results] == [f"run {number}" for number in range(50)]
    assert len({run_id for run_id, _ in results}) == 50


# --- call forms -----------------------------------------------------------------------------


class FakeSession:
    model_info_text = "one model is loaded"
    workspace = Workspace()
    callers: Mapping[str, str] = MappingProxyType({})
    notebook_path = None

    def __init__(self, name: str, server: MCPServer) -> None:
        self.name = name
        self.session_id = f"{name}-1"
        self.mcp_config = self.open_mcp_config = {"session": server}

    def about(self) -> dict[str, str]:
        return {}


@pytest.fixture
def open_sessions(monkeypatch: pytest.MonkeyPatch) -> list[FakeSession]:
    sessions: list[FakeSession] = []
    monkeypatch.setattr("seer.harness._request.open_sessions", lambda: sessions)
    return sessions


async def started(**arguments: Any) -> RunStarted:
    steps: Sequence[Step] = [Step(text="ok")]
    events = await collect(run_agent(provider=Scripted(steps), **arguments))
    assert isinstance(events[0], RunStarted)
    return events[0]


async def test_with_only_a_prompt_the_prompt_is_the_task(calculator: MCPServer) -> None:
    event = await started(prompt="do it", mcp_config={"calc": calculator})
    assert (event.task, event.system_prompt) == ("do it", "")


async def test_prompt_task_and_prompts_find_their_places(calculator: MCPServer) -> None:
    event = await started(
        prompt="you are kind",
        task="do it",
        prompts=["use add"],
        mcp_servers=[{"calc": calculator}],
    )
    assert (event.task, event.system_prompt) == ("do it", "you are kind\n\nuse add")


async def test_a_session_brings_its_tools_and_its_text(calculator: MCPServer) -> None:
    session = FakeSession("s", calculator)
    more: MCPServer = MCPServer("more")
    more.tool(name="add")(lambda: "another add")
    event = await started(session=session, task="look", mcp_servers=[{"more": more}])
    assert event.session == "s-1"
    assert event.system_prompt == "one model is loaded"
    assert "session__add" in {tool.name for tool in event.tools}


async def test_names_of_tools_keep_the_strictest_vendors_rules() -> None:
    long = "x" * 200
    tools = [long + "a", long + "b", "3d.plot", "_3d_plot", "-v", "x" * 64, "名"]
    one: MCPServer = MCPServer("one")
    for tool in tools:
        one.tool(name=tool)(lambda said=tool: said)
    event = await started(prompt="x", mcp_config={"lab": one})
    names = [tool.name for tool in event.tools]
    assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_-]{0,63}", name) for name in names), names
    assert len({*names}) == len(tools)
    assert names[5] == tools[5]
    script = Scripted([Step(calls=tuple(Call(tool=name) for name in names)), Step(text="done")])
    found = [event async for event in run_agent("x", provider=script, mcp_config={"lab": one})]
    assert [event.text for event in found if isinstance(event, ToolResult)] == tools


async def test_names_that_vendors_refuse_become_names_that_they_accept() -> None:
    servers = {"my files": MCPServer("one"), "my.files": MCPServer("two")}
    offered = {
        "my_files__read_all": ("my files", "read.all"),
        "my_files__read_all_2": ("my files", "read_all"),
        "my_files__read_all_3": ("my.files", "read.all"),
        "close_it": ("my.files", "close.it"),
    }
    for server, tool in offered.values():
        servers[server].tool(name=tool)(lambda said=f"{tool} of {server}": said)
    script = Scripted([Step(calls=tuple(Call(tool=name) for name in offered)), Step(text="done")])
    found = [event async for event in run_agent("read", provider=script, mcp_config=servers)]
    said = [event.text for event in found if isinstance(event, ToolResult)]
    assert said == [f"{tool} of {server}" for server, tool in offered.values()]


async def test_the_only_open_session_is_used_by_the_first_run_alone(
    calculator: MCPServer, open_sessions: list[FakeSession], caplog: pytest.LogCaptureFixture
) -> None:
    open_sessions.append(FakeSession("lonely", calculator))
    event = await started(prompt="look", mcp_config={})
    assert event.session == "lonely-1"
    assert "the agent gets the tools of the only open session, lonely" in caplog.text

    judge = await started(prompt="judge it", mcp_config={})
    assert (judge.session, judge.tools, judge.system_prompt) == (None, (), "")
    assert "earlier runs have used the open sessions" in caplog.text

    open_sessions.append(FakeSession("other", calculator))
    assert (await started(prompt="go on", session=open_sessions[1])).session == "other-1"
    assert (await started(prompt="judge both", mcp_config={})).tools == ()


async def test_an_agent_without_tools_is_had_whatever_is_open(
    calculator: MCPServer, open_sessions: list[FakeSession]
) -> None:
    open_sessions.append(FakeSession("unused", calculator))
    judge = await started(prompt="judge it", mcp_config={}, tools=False)
    assert (judge.session, judge.tools) == (None, ())
    with pytest.raises(ConfigError, match="leave out session="):
        run_agent("x", provider=adding(), tools=False, mcp_servers=[{"calc": calculator}])


async def test_a_session_is_known_by_its_server_under_any_name_and_among_others(
    stdio_server: dict[str, Any], calculator: MCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = FakeSession("my session!", calculator)
    session.mcp_config = session.open_mcp_config = {"my-session": stdio_server["tools"]}
    sessions = [FakeSession("another", calculator), session]
    monkeypatch.setattr("seer.harness._request.open_sessions", lambda: sessions)
    mixed = {"renamed": {**stdio_server["tools"], "env": {"A": "b"}}, "more": MCPServer("more")}
    for given in ({"mcp_config": mixed}, {"mcp_servers": [mixed]}):
        event = await started(task="look", **given)
        assert event.session == "my session!-1"
        assert event.system_prompt == "one model is loaded"
        assert {tool.server for tool in event.tools} == {"renamed"}, "the server is there once"


async def test_what_a_session_says_of_itself_is_said_once(calculator: MCPServer) -> None:
    class Talking(FakeSession):
        workspace = Workspace(libraries=[Library.from_code("lib", "def twice():\n    'Twofold.'")])
        model_info_text = f"one model is loaded\n\n{workspace.get_library_docs()}\n"

    session = Talking("talking", calculator)
    docs = session.workspace.get_library_docs()
    for prompt in ("do it", f"{session.model_info_text}\ndo it", f"{docs}\n{docs}\ndo it"):
        for words in ({"prompt": prompt}, {"prompt": prompt, "task": prompt, "prompts": [docs]}):
            event = await started(session=session, **words)
            said = event.system_prompt + event.task
            assert said.count("Twofold.") == said.count("one model is loaded") == 1
            assert said.count("do it") == len(words) // 2 + 1


async def test_several_open_sessions_are_an_error_that_names_them(
    calculator: MCPServer, open_sessions: list[FakeSession]
) -> None:
    open_sessions.extend([FakeSession("one", calculator), FakeSession("two", calculator)])
    with pytest.raises(ConfigError, match=r"one \(one-1\), two \(two-1\)"):
        run_agent(prompt="look", mcp_config={}, provider=adding())


async def test_seer_agent_stands_in_loudly(
    calculator: MCPServer,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = tmp_path / "steps.toml"
    steps.write_text(
        '[[steps]]\ntext = "adding"\n[[steps.calls]]\ntool = "add"\nsave = "sum"\n'
        'expect = { contains = "3" }\n[steps.calls.arguments]\na = 1\nb = 2\n'
        '[[steps]]\ntext = "got {sum.structured.result}"\n'
    )
    monkeypatch.setenv("SEER_AGENT", f"scripted:{steps}")
    events = await collect(run_agent("x", {"calc": calculator}, provider="claude"))
    assert isinstance(events[-1], RunFinished)
    assert events[-1].result == "got 3"
    assert "runs instead of 'claude'" in caplog.text


async def test_seer_agent_replaces_an_agent_object_too_and_the_record_names_who_ran(
    calculator: MCPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = tmp_path / "steps.toml"
    steps.write_text('[[steps]]\ntext = "I am the other one"\n')
    monkeypatch.setenv("SEER_AGENT", f"scripted:{steps}")
    run = run_agent("x", {"calc": calculator}, provider=adding(), record=tmp_path / "runs")
    events = await collect(run)
    assert isinstance(events[-1], RunFinished)
    assert events[-1].result == "I am the other one"
    assert run.folder is not None
    assert open_run(run.folder).meta["agent"] == f"scripted:{steps}"


async def test_a_run_prints_as_one_line_with_its_state(calculator: MCPServer) -> None:
    run = run_agent("x", {"calc": calculator}, provider=adding(), record=False)
    assert repr(run) == f"<AgentRun {run.run_id}: scripted, not started>"
    await anext(run)
    assert repr(run).endswith("scripted, running>")
    await collect(run)
    assert repr(run) == f"<AgentRun {run.run_id}: scripted, completed>"
    assert run._repr_html_() == f"<code>&lt;{repr(run)[1:-1]}&gt;</code>"  # pyright: ignore[reportPrivateUsage]


async def test_a_run_of_a_notebook_has_the_name_of_the_notebooks_folder(
    calculator: MCPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-study").mkdir()
    monkeypatch.chdir(tmp_path / "my-study")
    launcher = tmp_path / "lib" / "site-packages" / "ipykernel_launcher.py"
    monkeypatch.setattr("sys.argv", [str(launcher), "-f", "kernel.json"])
    run = run_agent("x", {"calc": calculator}, provider=adding(), record=tmp_path / "runs")
    await collect(run)
    assert run.folder is not None
    assert open_run(run.folder).info.name == "my-study"


async def test_seer_agent_leaves_an_agent_alone_that_is_no_subject(
    calculator: MCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEER_AGENT", "nonsense")
    run = run_agent("x", {"calc": calculator}, provider=adding(), substitute=False, record=False)
    events = await collect(run)
    assert isinstance(events[-1], RunFinished)
    assert events[-1].reason == "completed"


@pytest.mark.parametrize("provider", ["claude", Scripted([Step(text="hello")])])
def test_an_unknown_seer_agent_is_an_error(
    provider: str | Scripted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SEER_AGENT", "nonsense")
    told = "SEER_AGENT='nonsense': there is no agent 'nonsense'; there are: claude, gemini, "
    with pytest.raises(ConfigError, match=told):
        run_agent("x", {}, provider=provider)
    assert "runs instead" not in caplog.text


def test_bad_arguments_are_named_at_once(calculator: MCPServer) -> None:
    tools = {"calc": calculator}
    with pytest.raises(ConfigError, match="nothing to ask"):
        run_agent(None, tools, provider=adding())
    with pytest.raises(ConfigError, match="did you mean 'scripted'"):
        run_agent("x", tools, provider="script")
    with pytest.raises(ConfigError, match="give one of them"):
        run_agent("x", tools, provider=adding(), task="a", user_message="b")
    with pytest.raises(ConfigError, match="another tool server has this name"):
        run_agent("x", tools, provider=adding(), mcp_servers=[{"calc": {"url": "http://x"}}])
    with pytest.raises(ConfigError, match="unknown keys"):
        run_agent("x", {"a": {"comand": "x"}}, provider=adding())
    with pytest.raises(ToolServerError, match="'no-such-command' does not exist"):
        run_agent("x", {"a": {"command": "no-such-command"}}, provider=adding())


class Hasty(Agent):
    """Makes all its calls at once."""

    name = "hasty"

    def check(self, request: AgentRequest) -> None:
        """Nothing is needed."""

    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        """Two calls at the same time."""
        context.begin_turn()
        calls = [
            context.call_tool(str(number), "add", arguments={"a": number, "b": 0})
            for number in range(3)
        ]
        await asyncio.gather(*calls)


async def test_calls_of_a_session_are_made_one_after_another_in_their_order(
    calculator: MCPServer,
) -> None:
    decided: list[str] = []
    free = asyncio.Event()

    async def slow_at_first(call: ToolCall) -> bool:
        decided.append(call.id)
        if call.id == "0":
            asyncio.get_running_loop().call_soon(free.set)
            await free.wait()
        return True

    run = run_agent(
        "x", provider=Hasty(), session=FakeSession("lab", calculator), approve=slow_at_first
    )
    results = [event.id async for event in run if isinstance(event, ToolResult)]
    assert results == decided == ["0", "1", "2"]
