"""A tool call runs only if the policy, a function or a person allows it."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp.server import MCPServer

from seer.errors import ConfigError, RunControlError
from seer.events import ApprovalAsked, ApprovalGiven, Event
from seer.harness import (
    ApprovalAnswer,
    Call,
    Expect,
    Limits,
    LineTerminal,
    ReplayAgent,
    RunFinished,
    Scripted,
    Step,
    ToolCall,
    ToolResult,
    control_run,
    run_agent,
    run_agent_interactive,
)
from seer.runs import open_run

ANY = Expect(error="any")


def agent(*calls: Call) -> Scripted:
    asked = calls or (Call(tool="add", arguments={"a": 1, "b": 2}, expect=ANY),)
    return Scripted([Step(calls=asked), Step(text="done")])


async def events_of(run: Any, answer: Callable[[ApprovalAsked], None] | None = None) -> list[Event]:
    events: list[Event] = []
    with anyio.fail_after(60):
        async for event in run:
            events.append(event)
            if answer is not None and isinstance(event, ApprovalAsked):
                answer(event)
    return events


def results(events: list[Event]) -> list[tuple[str, bool]]:
    return [(event.text, event.is_error) for event in events if isinstance(event, ToolResult)]


def decisions(events: list[Event]) -> list[tuple[bool, str, str]]:
    given = [event for event in events if isinstance(event, ApprovalGiven)]
    return [(event.approved, event.by, event.reason) for event in given]


async def test_without_a_policy_calls_are_made_and_nobody_is_asked(calculator: MCPServer) -> None:
    events = await events_of(run_agent("x", {"lab": calculator}, provider=agent()))
    assert results(events) == [("3", False)]
    assert decisions(events) == []


async def test_a_denied_call_is_not_made_and_told_to_the_agent(calculator: MCPServer) -> None:
    run = run_agent("x", {"lab": calculator}, provider=agent(), approve="deny")
    events = await events_of(run)
    ((text, is_error),) = results(events)
    assert is_error and "not approved" in text
    assert decisions(events) == [(False, "policy", "")]
    assert isinstance(events[-1], RunFinished)
    assert (events[-1].reason, events[-1].tool_calls) == ("completed", 0)
    recorded = [event["type"] for event in open_run(run.run_id).events()]
    assert "approval_given" in recorded


@pytest.mark.parametrize(
    ("approve", "made"),
    [
        ({"add": "auto", "*": "deny"}, [True, False]),
        ({"br*": "deny"}, [True, False]),
        ({"lab/*": "deny"}, [False, False]),
        ({"other/*": "deny"}, [True, True]),
    ],
)
async def test_the_first_pattern_that_fits_holds(
    calculator: MCPServer, approve: dict[str, Any], made: list[bool]
) -> None:
    both = agent(
        Call(tool="add", arguments={"a": 1, "b": 2}, expect=ANY), Call(tool="broken", expect=ANY)
    )
    run = run_agent("x", {"lab": calculator}, provider=both, approve=approve)
    told = [text for text, _ in results(await events_of(run))]
    assert ["not approved" not in text for text in told] == made


def ones(call: ToolCall) -> bool:
    return call.arguments["a"] == 1


def strict(call: ToolCall) -> ApprovalAnswer:
    return "deny"


async def later(call: ToolCall) -> bool:
    return call.arguments == {"a": 1, "b": 2}


def broken(call: ToolCall) -> bool:
    raise ValueError("cannot say")


def talkative(call: ToolCall) -> Any:
    return "perhaps"


@pytest.mark.parametrize(
    ("function", "made", "said"),
    [
        (ones, True, ""),
        (strict, False, ""),
        (later, True, ""),
        (broken, False, "cannot say"),
        (talkative, False, "perhaps"),
    ],
)
async def test_a_function_decides_and_one_that_fails_denies(
    calculator: MCPServer, function: Any, made: bool, said: str
) -> None:
    run = run_agent("x", {"lab": calculator}, provider=agent(), approve=function)
    events = await events_of(run)
    ((approved, by, reason),) = decisions(events)
    assert (approved, by) == (made, "function")
    assert said in reason and said in results(events)[0][0]


async def test_the_program_answers_and_the_call_waits_for_it(calculator: MCPServer) -> None:
    run = run_agent("x", {"lab": calculator}, provider=agent(), approve="ask")

    def answer(event: ApprovalAsked) -> None:
        run.approve("another", approved=False)
        run.approve(event.id, approved=False, reason="not today")

    events = await events_of(run, answer)
    assert decisions(events) == [(False, "person", "not today")]
    assert "not today" in results(events)[0][0]


async def test_another_process_answers(calculator: MCPServer) -> None:
    run = run_agent("x", {"lab": calculator}, provider=agent(), approve="ask")
    made: list[ToolResult] = []

    async def control(call: str) -> None:
        folder = run.folder
        assert isinstance(folder, Path)
        await anyio.to_thread.run_sync(
            lambda: control_run(folder, "approve", call=call, approved=True)
        )

    with anyio.fail_after(60):
        async for event in run:
            if isinstance(event, ApprovalAsked):
                with pytest.raises(RunControlError, match="is not a call that waits for approval"):
                    await control("another")
                await control(event.id)
            elif isinstance(event, ToolResult):
                made.append(event)
    assert [event.text for event in made] == ["3"]


async def test_a_person_in_a_chat_is_asked_in_the_terminal(calculator: MCPServer) -> None:
    shown = io.StringIO()
    add = Call(tool="add", arguments={"a": 1, "b": 2}, expect=ANY)
    steps = [Step(calls=(add, add, add)), Step(text="done")]
    await run_agent_interactive(
        mcp_config={"lab": calculator},
        task="add",
        provider=Scripted(steps),
        approve="ask",
        terminal=LineTerminal(io.StringIO("y\nno\nit is late\n/exit\n"), shown),
    )
    text = shown.getvalue()
    assert text.count("? add(a=1, b=2)") == 3
    assert "  3\n" in text
    assert "not made: it is late" in text


async def test_the_time_limit_holds_while_a_person_is_asked(calculator: MCPServer) -> None:
    run = run_agent(
        "x",
        {"lab": calculator},
        provider=agent(),
        approve="ask",
        limits=Limits(seconds=0.2, conclude_seconds=30),
    )
    events = await events_of(run)
    assert isinstance(events[-1], RunFinished)
    assert (events[-1].reason, events[-1].tool_calls) == ("limit", 0)


async def test_a_replay_asks_nobody_and_decides_as_recorded(calculator: MCPServer) -> None:
    both = agent(*[Call(tool="add", arguments={"a": n, "b": 2}, expect=ANY) for n in (1, 2)])

    run = run_agent("x", {"lab": calculator}, provider=both, approve=ones)
    first = await events_of(run)
    again = ReplayAgent(open_run(run.run_id))
    second = await events_of(run_agent("x", {"lab": calculator}, provider=again, approve="ask"))
    assert decisions(first) == [(True, "function", ""), (False, "function", "")]
    assert decisions(second) == decisions(first)
    assert results(second) == results(first)
    assert isinstance(second[-1], RunFinished) and second[-1].reason == "completed"


async def test_the_environment_decides_for_a_program(
    calculator: MCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEER_APPROVE", "broken=auto,deny")
    run = run_agent("x", {"lab": calculator}, provider=agent(), approve="auto")
    assert decisions(await events_of(run)) == [(False, "policy", "")]


@pytest.mark.parametrize("approve", ["never", {"add": "perhaps"}, {"add": None}, 3])
def test_what_is_no_policy_is_refused(calculator: MCPServer, approve: Any) -> None:
    with pytest.raises(ConfigError, match="approve"):
        run_agent("x", {"lab": calculator}, provider=agent(), approve=approve)


def test_tools_that_a_vendor_runs_cannot_be_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-none")
    with pytest.raises(ConfigError, match="WebSearch"):
        run_agent("x", builtin_tools=["WebSearch"], approve="ask")
    run_agent("x", builtin_tools=["WebSearch"], approve={"WebSearch": "auto", "*": "ask"})
