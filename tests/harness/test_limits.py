"""Limits are enforced and reported for any provider, with one last turn to conclude."""

from typing import Any

import anyio
import pytest
from mcp.server import MCPServer

from seer.errors import ConfigError
from seer.events import Event, LimitReached
from seer.harness import (
    Call,
    Limits,
    Price,
    ReplayAgent,
    RunFinished,
    Scripted,
    Step,
    Text,
    ToolResult,
    run_agent,
)
from seer.runs import open_run


async def collect(run: Any) -> list[Event]:
    with anyio.fail_after(60):
        return [event async for event in run]


def eager(turns: int, **usage: int) -> Scripted:
    """An agent that would call a tool in every turn."""
    call = Call(tool="add", arguments={"a": 1, "b": 1})
    return Scripted([Step(text=f"turn {n}", calls=(call,), usage=usage) for n in range(1, turns)])


def finished(events: list[Event]) -> RunFinished:
    assert isinstance(events[-1], RunFinished)
    return events[-1]


def reached(events: list[Event]) -> list[str]:
    return [event.limit for event in events if isinstance(event, LimitReached)]


async def test_after_the_last_turn_with_tools_there_is_one_to_conclude(
    calculator: MCPServer,
) -> None:
    run = run_agent("x", {"c": calculator}, provider=eager(9), limits=Limits(turns=2))
    events = await collect(run)
    assert reached(events) == ["turns"]
    assert [event.text for event in events if isinstance(event, Text)] == [
        "turn 1",
        "turn 2",
        "turn 3",
    ]
    end = finished(events)
    assert (end.reason, end.turns, end.tool_calls) == ("limit", 3, 2)


async def test_the_agent_is_told_that_its_next_message_is_the_last(calculator: MCPServer) -> None:
    run = run_agent("x", {"c": calculator}, provider=eager(9), limits=Limits(turns=1))
    results = [event for event in await collect(run) if isinstance(event, ToolResult)]
    assert results[0].text.startswith("2\n[The limit of 1 turns")
    assert "your next message is the last" in results[0].text


async def test_a_call_beyond_the_limit_is_not_run(calculator: MCPServer) -> None:
    run = run_agent("x", {"c": calculator}, provider=eager(9), limits=Limits(tool_calls=2))
    events = await collect(run)
    results = [event for event in events if isinstance(event, ToolResult)]
    assert [result.is_error for result in results] == [False, False, True]
    assert finished(events).tool_calls == 2
    assert reached(events) == ["tool_calls"]


async def test_no_tool_calls_at_all_can_be_allowed(calculator: MCPServer) -> None:
    run = run_agent("x", {"c": calculator}, provider=eager(9), limits=Limits(tool_calls=0))
    events = await collect(run)
    assert finished(events).tool_calls == 0


async def test_exactly_as_many_calls_as_allowed_is_no_limit_reached(calculator: MCPServer) -> None:
    call = Call(tool="add", arguments={"a": 1, "b": 1})
    agent = Scripted([Step(calls=(call, call)), Step(text="done")])
    events = await collect(
        run_agent("x", {"c": calculator}, provider=agent, limits=Limits(tool_calls=2))
    )
    assert reached(events) == []
    assert finished(events).reason == "completed"


async def test_tokens_are_counted_over_all_turns(calculator: MCPServer) -> None:
    agent = eager(9, input_tokens=40, output_tokens=10)
    run = run_agent("x", {"c": calculator}, provider=agent, limits=Limits(tokens=100))
    events = await collect(run)
    assert reached(events) == ["tokens"]
    assert finished(events).turns == 3
    assert finished(events).tokens == 150


async def test_cost_is_counted_with_the_given_price(calculator: MCPServer) -> None:
    agent = eager(9, input_tokens=1_000_000, output_tokens=100_000)
    run = run_agent(
        "x",
        {"c": calculator},
        provider=agent,
        limits=Limits(cost_usd=6.0),
        price=Price(input=2.0, output=10.0),
    )
    events = await collect(run)
    assert reached(events) == ["cost_usd"]
    assert finished(events).cost_usd == pytest.approx(9.0)


async def test_a_cost_limit_without_a_price_is_an_error(calculator: MCPServer) -> None:
    agent = eager(9, input_tokens=10)
    run = run_agent("x", {"c": calculator}, provider=agent, limits=Limits(cost_usd=1.0))
    with pytest.raises(ConfigError, match="no price is known"):
        await collect(run)


async def test_a_tool_that_runs_past_the_time_limit_is_stopped(calculator: MCPServer) -> None:
    async def forever() -> str:
        """Never ends."""
        await anyio.sleep_forever()
        return "never"

    calculator.tool()(forever)
    agent = Scripted([Step(calls=(Call(tool="forever"),)), Step(text="all I have")])
    run = run_agent("x", {"c": calculator}, provider=agent, limits=Limits(seconds=2.0))
    events = await collect(run)
    assert reached(events) == ["seconds"]
    assert (finished(events).reason, finished(events).result) == ("limit", "all I have")


async def test_the_last_turn_is_bounded_too(calculator: MCPServer) -> None:
    class Slow(Scripted):
        async def run(self, request: Any, context: Any) -> None:
            context.begin_turn()
            await anyio.sleep_forever()

    limits = Limits(seconds=0.1, conclude_seconds=0.2)
    run = run_agent("x", {"c": calculator}, provider=Slow([Step(text="x")]), limits=limits)
    assert finished(await collect(run)).reason == "limit"


async def test_raising_a_limit_lets_the_run_go_on(calculator: MCPServer) -> None:
    run = run_agent("x", {"c": calculator}, provider=eager(6), limits=Limits(tool_calls=1))
    events: list[Event] = []
    with anyio.fail_after(60):
        async for event in run:
            events.append(event)
            if isinstance(event, Text) and event.text == "turn 1":
                run.set_limits(Limits(tool_calls=3))
    assert finished(events).tool_calls == 3


async def test_concluding_on_request_gives_one_last_turn(calculator: MCPServer) -> None:
    run = run_agent("x", {"c": calculator}, provider=eager(9))
    events: list[Event] = []
    with anyio.fail_after(60):
        async for event in run:
            events.append(event)
            if isinstance(event, Text) and event.text == "turn 2":
                run.conclude()
    assert reached(events) == ["stop"]
    assert finished(events).turns == 3


@pytest.mark.parametrize(
    "values", [{"turns": 0}, {"seconds": -1}, {"tokens": 1.5}, {"cost_usd": "1"}, {"turns": True}]
)
def test_limits_that_cannot_work_are_named(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"Limits.{next(iter(values))}"):
        Limits(**values)


async def test_limits_hold_for_a_replayed_agent_too(calculator: MCPServer) -> None:
    recorded = run_agent("x", {"c": calculator}, provider=eager(6))
    await collect(recorded)
    agent = ReplayAgent(open_run(recorded.run_id))
    run = run_agent("x", {"c": calculator}, provider=agent, limits=Limits(turns=2))
    events = await collect(run)
    assert reached(events) == ["turns"]
    assert (finished(events).reason, finished(events).turns) == ("limit", 3)
    assert finished(events).result == "turn 3"
