"""A replayed agent makes the recorded calls again, whatever order and ids they had."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from mcp.server import MCPServer

from seer.events import ErrorEvent, Event, TextBlock, ToolCall, ToolResult
from seer.harness import (
    Agent,
    AgentContext,
    AgentRequest,
    Forked,
    ReplayAgent,
    RunFinished,
    Scripted,
    Step,
    Text,
    run_agent,
)
from seer.runs import Run, RunInfo, RunRecord, compare_runs, open_run
from seer.testing.agent_contract import tools

Work = Callable[[AgentContext], Awaitable[None]]


class Made(Agent):
    """An agent that is one function."""

    name = "made"

    def __init__(self, work: Work) -> None:
        self._work = work

    def check(self, request: AgentRequest) -> None:
        """Nothing is needed."""

    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        """Do the work, then answer."""
        context.begin_turn()
        await self._work(context)
        context.emit(Text(text="done"))


async def perform(agent: Agent, done: list[str] | None = None) -> tuple[Run, list[Event]]:
    run = run_agent("add", mcp_config={"lab": tools(done)}, provider=agent)
    with anyio.fail_after(30):
        events = [event async for event in run]
    return open_run(run.run_id), events


def last(events: list[Event]) -> RunFinished:
    assert isinstance(events[-1], RunFinished)
    return events[-1]


async def add(context: AgentContext, call_id: str, a: int) -> None:
    await context.call_tool(call_id, "add", arguments={"a": a, "b": 0})


async def test_calls_of_one_answer_are_the_same_one_by_one() -> None:
    async def together(context: AgentContext) -> None:
        async with anyio.create_task_group() as group:
            for number in (1, 2):
                group.start_soon(add, context, f"c{number}", number)

    recorded, events = await perform(Made(together))
    kinds = [event.type for event in events if isinstance(event, ToolCall | ToolResult)]
    assert kinds == ["tool_call", "tool_call", "tool_result", "tool_result"]
    replayed, again = await perform(ReplayAgent(recorded))
    assert last(again).reason == "completed", last(again)
    assert compare_runs(recorded, replayed).equal


async def test_a_result_without_the_notice_of_a_limit_must_fail_as_the_recorded_one(
    tmp_path: Path,
) -> None:
    record = RunRecord.create(tmp_path, "20260101-000000-aaaaaaaa", meta={"task": "add"})
    notice = "[Give your conclusions now: your next message is the last.]"
    for event in (
        ToolCall(id="1", name="add", server="lab", arguments={"a": 1, "b": 2}, turn=1),
        ToolResult(
            id="1",
            name="add",
            content=(TextBlock(text="3"), TextBlock(text=notice)),
            is_error=True,
            turn=1,
        ),
    ):
        record.event(event.to_json())
    record.close("limit")
    _, again = await perform(ReplayAgent(open_run(record.run_id, tmp_path)))
    assert [event.kind for event in again if isinstance(event, ErrorEvent)] == ["divergence"]


async def test_a_record_of_an_earlier_version_finds_a_tool_by_its_name_then(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "20260101-000000-aaaaaaaa", meta={"task": "add"})
    call = ToolCall(id="1", name="3d_plot", server="lab", turn=1)
    record.event(call.to_json())
    record.event(
        ToolResult(id="1", name="3d_plot", content=(TextBlock(text="seen"),), turn=1).to_json()
    )
    record.close("completed")
    lab: MCPServer = MCPServer("lab")
    lab.tool(name="3d.plot")(lambda: "seen")
    agent = ReplayAgent(open_run(record.run_id, tmp_path))
    events = [event async for event in run_agent("add", mcp_config={"lab": lab}, provider=agent)]
    assert last(events).reason == "completed", last(events)


async def test_a_result_belongs_to_its_call_if_ids_are_used_again() -> None:
    async def twice(context: AgentContext) -> None:
        await add(context, "c0", 1)
        context.begin_turn()
        await add(context, "c0", 2)

    recorded, _ = await perform(Made(twice))
    replayed, again = await perform(ReplayAgent(recorded))
    assert last(again).reason == "completed", last(again)
    assert compare_runs(recorded, replayed).equal


@pytest.mark.parametrize("forked", [False, True])
async def test_a_call_that_was_never_made_is_not_made_in_a_replay(forked: bool) -> None:
    said = TextBlock(text="the arguments are not a JSON object: {")

    async def unreadable(context: AgentContext) -> None:
        context.emit(ToolCall(id="c1", name="picture", server=None, arguments={}))
        context.emit(ToolResult(id="c1", name="picture", content=(said,), is_error=True))

    recorded, _ = await perform(Made(unreadable))
    after = Scripted([Step(text="and on")])
    agent = Forked(recorded, turn=1, agent=after) if forked else ReplayAgent(recorded)
    replayed, again = await perform(agent)
    assert last(again).reason == "completed", last(again)
    results = [event.content for event in again if isinstance(event, ToolResult)]
    assert results == [(said,)]
    if not forked:
        assert compare_runs(recorded, replayed).equal


@pytest.mark.parametrize(
    ("recorded", "now", "found"),
    [
        (("agent0-1", "agent1-2"), ("agent1-1", "agent0-2"), (1, 0)),
        (("agent0-1", "agent1-2"), ("agent0-1", "agent1-2"), (0, 1)),
        (("agent-1", "agent-2"), ("agent-2", "agent-1"), (1, 0)),
        (("local-aa11bb-1", "local-cc33dd-2"), ("local-ee55ff-2", "local-778899-1"), (1, 0)),
        (("local-aa11bb-1", "cli-cc33dd-2"), ("cli-ee55ff-1", "local-778899-2"), (1, 0)),
    ],
)
def test_a_session_gets_the_messages_of_the_session_with_its_name(
    tmp_path: Path, recorded: tuple[str, ...], now: tuple[str, ...], found: tuple[int, ...]
) -> None:
    names = [f"20260101-000000-{n:08x}" for n in range(len(recorded))]
    for name, caller in zip(names, recorded, strict=True):
        info = RunInfo(task="look", callers={"vec": caller})
        RunRecord.create(tmp_path, name, meta=info).close("completed")
    agent = ReplayAgent(open_run(names[0], tmp_path), whole_program=True)
    requests = [
        AgentRequest(
            run_id=f"{tmp_path}-{n}",
            provider="scripted",
            model=None,
            system_prompt="",
            task="look",
            callers={"vec": caller},
        )
        for n, caller in enumerate(now)
    ]
    played = [names.index(agent.find(request, play=True).run_id) for request in requests]
    assert tuple(played) == found
