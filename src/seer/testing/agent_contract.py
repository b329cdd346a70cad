"""The contract of a vendor's agent, as tests that a test module inherits.

Subclass `AgentContract` in a test module and implement the methods that reach your vendor's
endpoint. Pytest, with anyio's plugin, runs the tests. The vendor's SDK is real; only its endpoint
is scripted.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import psutil
from mcp.server import MCPServer
from mcp.server.mcpserver import Image

from seer.events import (
    ApprovalGiven,
    ErrorEvent,
    Event,
    LimitReached,
    MessageQueued,
    RunStarted,
    Thinking,
    Usage,
    UserMessage,
)
from seer.harness import (
    AgentRun,
    Forked,
    Limits,
    Price,
    RunFinished,
    Text,
    ToolCall,
    ToolResult,
    run_agent,
)
from seer.runs import open_run
from seer.testing.vendors import (
    Fault,
    Reply,
    Request,
    ScriptItem,
    ToolUse,
    VendorEndpoint,
)

E = TypeVar("E", bound=Event)

KEY = "sk-contract-0123456789abcdef"
PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f"
    b"\x15\xc4\x89\x00\x00\x00\nIDATx\x9cc\x00\x01\x00\x00\x05\x00\x01\r\n-\xb4\x00\x00\x00\x00"
    b"IEND\xaeB`\x82"
)
DYING = """
import os, sys
from mcp.server import MCPServer
server = MCPServer("dying")

@server.tool()
def die() -> str:
    print("the final output", file=sys.stderr, flush=True)
    os._exit(3)

server.run("stdio")
"""


def tools(
    done: list[str] | None = None, *, in_forever: Callable[[], None] | None = None
) -> MCPServer:
    """A tool server in this process.

    Args:
        done: A list that gets a line for each addition.
        in_forever: Called when the tool that never ends begins.
    """
    server: MCPServer = MCPServer("lab")

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        if done is not None:
            done.append(f"add {a} {b}")
        return a + b

    def fail() -> str:
        """Always fails."""
        raise ValueError("the tool is broken")

    def picture() -> Image:
        """A picture."""
        return Image(data=PIXEL, format="png")

    async def forever() -> str:
        """Never ends."""
        if in_forever is not None:
            in_forever()
        await anyio.sleep_forever()
        return ""

    for function in (add, fail, picture, forever):
        server.tool()(function)
    return server


class AgentTest(ABC):
    """Runs a vendor's agent against its endpoint. Override the first three methods."""

    patience = 60.0
    """The time limit of one run, in seconds."""

    @abstractmethod
    def endpoint(self, script: Sequence[ScriptItem]) -> VendorEndpoint:
        """Make the vendor's endpoint with this script."""

    @abstractmethod
    def arguments(self, endpoint: VendorEndpoint) -> dict[str, Any]:
        """The arguments of `run_agent` that select the endpoint (`provider`, `base_url`, ...)."""

    def wire_name(self, tool: str) -> str:
        """The name by which the vendor's model calls a tool of the server `lab`."""
        return tool

    # --- helpers of the tests ------------------------------------------------

    def add(self, a: int = 1, b: int = 2) -> ToolUse:
        """A call of the tool that adds."""
        return self.use("add", a=a, b=b)

    def use(self, tool: str, **arguments: Any) -> ToolUse:
        """A call of a tool."""
        return ToolUse(name=self.wire_name(tool), arguments=arguments)

    def start(self, endpoint: VendorEndpoint, **arguments: Any) -> AgentRun:
        """Start a run against the endpoint."""
        given: dict[str, Any] = {"task": "add one and two", "mcp_config": {"lab": tools()}}
        given |= {"api_key": KEY, **self.arguments(endpoint), **arguments}
        return run_agent(**given)

    async def finish(self, run: AgentRun) -> list[Event]:
        """Wait for the end of a run, and return all its events."""
        with anyio.fail_after(self.patience):
            return [event async for event in run]

    async def play(self, script: Sequence[ScriptItem], **arguments: Any) -> list[Event]:
        """Run against this script, and return all events."""
        with self.endpoint(script) as endpoint:
            return await self.finish(self.start(endpoint, **arguments))


def only(events: Sequence[Event], kind: type[E]) -> list[E]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def last(events: Sequence[Event]) -> RunFinished:
    """The last event, which must say that the run is finished."""
    assert isinstance(events[-1], RunFinished)
    return events[-1]


def fatal(events: Sequence[Event]) -> ErrorEvent:
    """The one error that ended the run."""
    errors = [error for error in only(events, ErrorEvent) if error.fatal]
    assert len(errors) == 1, errors
    return errors[0]


def children() -> set[int]:
    """All processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


class AgentContract(AgentTest):
    """The contract. `AgentTest` has the methods to override."""

    # --- the conversation ------------------------------------------------

    async def test_a_run_reports_what_the_model_says_and_does(self) -> None:
        script = [
            Reply(text="I will add.", tools=(self.add(),), input_tokens=20, output_tokens=7),
            Reply(text="It is 3.", input_tokens=30, output_tokens=3),
        ]
        events = await self.play(script)
        assert isinstance(events[0], RunStarted)
        assert [event.text for event in only(events, Text)] == ["I will add.", "It is 3."]
        call, result = only(events, ToolCall)[0], only(events, ToolResult)[0]
        assert (call.name, call.server, dict(call.arguments)) == ("add", "lab", {"a": 1, "b": 2})
        assert (result.id, result.name, result.is_error) == (call.id, "add", False)
        assert result.text == "3"
        assert call.seq < result.seq
        end = last(events)
        assert (end.reason, end.result, end.turns, end.tool_calls) == (
            "completed",
            "It is 3.",
            2,
            1,
        )

    async def test_usage_is_counted(self) -> None:
        script = [
            Reply(text="a", tools=(self.add(),), input_tokens=20, output_tokens=7),
            Reply(text="b", input_tokens=30, output_tokens=3),
        ]
        events = await self.play(script)
        counts = [(event.input_tokens, event.output_tokens) for event in only(events, Usage)]
        assert counts == [(20, 7), (30, 3)]
        assert only(events, Usage)[-1].total_tokens == 60
        assert last(events).tokens == 60

    async def test_thinking_is_reported_apart(self) -> None:
        events = await self.play([Reply(thinking="hmm", text="yes")])
        assert [event.text for event in only(events, Thinking)] == ["hmm"]
        assert last(events).result == "yes"

    async def test_system_prompt_task_and_tools_reach_the_vendor(self) -> None:
        with self.endpoint([Reply(text="ok")]) as endpoint:
            await self.finish(self.start(endpoint, prompt="SYSTEM-WORDS", task="TASK-WORDS"))
            body = str(endpoint.requests[0].body)
        assert "SYSTEM-WORDS" in body
        assert "TASK-WORDS" in body
        assert "Add two numbers." in body

    async def test_a_result_reaches_the_model(self) -> None:
        with self.endpoint([Reply(tools=(self.add(40, 2),)), Reply(text="ok")]) as endpoint:
            await self.finish(self.start(endpoint))
            assert "42" in str(endpoint.requests[1].body)

    async def test_an_image_reaches_the_model(self) -> None:
        with self.endpoint([Reply(tools=(self.use("picture"),)), Reply(text="ok")]) as endpoint:
            events = await self.finish(self.start(endpoint))
            body = str(endpoint.requests[1].body)
        assert only(events, ToolResult)[0].images[0].data == PIXEL
        assert "iVBORw0KGgo" in body

    async def test_a_failing_tool_is_told_to_the_model_and_the_run_goes_on(self) -> None:
        with self.endpoint([Reply(tools=(self.use("fail"),)), Reply(text="ok")]) as endpoint:
            events = await self.finish(self.start(endpoint))
            assert "fail" in str(endpoint.requests[1].body)
        assert only(events, ToolResult)[0].is_error
        assert last(events).reason == "completed"

    async def test_several_tools_in_one_answer_are_all_run(self) -> None:
        script = [Reply(tools=(self.add(1, 1), self.add(2, 2), self.add(3, 3))), Reply(text="ok")]
        events = await self.play(script)
        assert sorted(event.text for event in only(events, ToolResult)) == ["2", "4", "6"]

    async def test_calls_in_one_answer_run_at_the_same_time(self) -> None:
        inside = [anyio.Event(), anyio.Event()]
        lab: MCPServer = MCPServer("lab")

        async def meet(mine: int) -> str:
            """Wait until the other call has arrived too."""
            inside[mine].set()
            await inside[1 - mine].wait()
            return f"met {mine}"

        lab.tool()(meet)
        calls = (self.use("meet", mine=0), self.use("meet", mine=1))
        script = [Reply(tools=calls), Reply(text="ok")]
        events = await self.play(script, mcp_config={"lab": lab})
        asked = {call.id: call.arguments["mine"] for call in only(events, ToolCall)}
        met = {result.id: result.text for result in only(events, ToolResult)}
        assert met == {call: f"met {mine}" for call, mine in asked.items()}
        assert last(events).reason == "completed"

    async def test_messages_sent_later_are_answered_in_the_same_conversation(self) -> None:
        script = [Reply(text="first"), Reply(text="second")]
        with self.endpoint(script) as endpoint:
            run = self.start(endpoint, interactive=True)
            events: list[Event] = []
            with anyio.fail_after(self.patience):
                async for event in run:
                    events.append(event)
                    if isinstance(event, Text):
                        run.send("and now?" if event.text == "first" else None)
            assert "first" in str(endpoint.requests[1].body)
            assert "and now?" in str(endpoint.requests[1].body)
        assert [event.text for event in only(events, UserMessage)] == ["and now?"]
        assert last(events).result == "second"

    async def test_a_message_sent_during_a_reply_is_answered_after_it(self) -> None:
        script = [Reply(tools=(self.add(),)), Reply(text="first"), Reply(text="second")]
        with self.endpoint(script) as endpoint:
            run = self.start(endpoint)
            events: list[Event] = []
            with anyio.fail_after(self.patience):
                async for event in run:
                    events.append(event)
                    if isinstance(event, ToolCall):
                        run.send("and now?")
            assert "and now?" in str(endpoint.requests[2].body)
        kinds = (MessageQueued, Text, UserMessage)
        assert [event.text for event in events if isinstance(event, kinds)] == [
            "and now?",
            "first",
            "and now?",
            "second",
        ]
        assert last(events).reason == "completed"

    async def test_an_interrupt_ends_the_answer_and_keeps_the_conversation(self) -> None:
        script = [Reply(tools=(self.use("forever"),)), Reply(text="still here")]
        with self.endpoint(script) as endpoint:
            run = self.start(endpoint, interactive=True)
            events: list[Event] = []
            with anyio.fail_after(self.patience):
                async for event in run:
                    events.append(event)
                    if isinstance(event, ToolCall):
                        run.interrupt()
                        run.send("never mind")
                    elif isinstance(event, Text):
                        run.send(None)
        assert last(events).result == "still here"

    async def test_a_fork_goes_on_with_what_happened_before(self) -> None:
        first = [
            Reply(text="I add.", tools=(self.add(20, 1),)),
            Reply(text="and again", tools=(self.add(99, 1),)),
            Reply(text="the old end"),
        ]
        with self.endpoint(first) as endpoint:
            run = self.start(endpoint)
            await self.finish(run)
        second = [Reply(text="more", tools=(self.add(30, 4),)), Reply(text="the new end")]
        with self.endpoint(second) as endpoint:
            given = self.arguments(endpoint)
            fork = Forked(open_run(run.run_id), turn=1, agent=given["provider"])
            events = await self.finish(self.start(endpoint, provider=fork))
            body = str(endpoint.requests[0].body)
        for part in ("add one and two", "I add.", "21"):
            assert part in body
        assert "and again" not in body
        assert [event.text for event in only(events, ToolResult)] == ["21", "34"]
        assert (last(events).result, last(events).turns) == ("the new end", 3)

    # --- scope ------------------------------------------------

    async def test_a_tool_that_was_not_offered_is_refused(self) -> None:
        script = [
            Reply(tools=(ToolUse(name="Bash", arguments={"command": "id"}),)),
            Reply(text="ok"),
        ]
        events = await self.play(script)
        call, result = only(events, ToolCall)[0], only(events, ToolResult)[0]
        assert (call.name, call.server) == ("Bash", None)
        assert result.is_error
        assert "uid=" not in result.text
        assert last(events).tool_calls == 0

    async def test_a_call_that_is_not_approved_is_told_to_the_model_as_an_error(self) -> None:
        done: list[str] = []

        def twos(call: ToolCall) -> bool:
            return call.arguments["a"] == 2

        script = [Reply(tools=(self.add(), self.add(2, 2))), Reply(text="ok")]
        with self.endpoint(script) as endpoint:
            run = self.start(
                endpoint,
                mcp_config={"lab": tools(done)},
                approve={"add": twos},
            )
            events = await self.finish(run)
            assert "not approved" in str(endpoint.requests[1].body)
        assert done == ["add 2 2"]
        assert sorted(event.approved for event in only(events, ApprovalGiven)) == [False, True]
        assert sorted(event.is_error for event in only(events, ToolResult)) == [False, True]
        assert (last(events).reason, last(events).tool_calls) == ("completed", 1)

    async def test_the_key_is_in_no_event_and_no_record(self) -> None:
        script = [Reply(tools=(self.add(),)), Fault(kind="status", status=401, message=KEY)]
        with self.endpoint(script) as endpoint:
            run = self.start(endpoint)
            events = await self.finish(run)
        assert all(KEY not in str(event.to_json()) for event in events)
        folder = open_run(run.run_id).folder
        for path in folder.rglob("*"):
            assert not path.is_file() or KEY.encode() not in path.read_bytes(), path

    # --- limits ------------------------------------------------

    async def test_a_limit_on_turns_leaves_one_turn_to_conclude(self) -> None:
        script = [Reply(text=str(n), tools=(self.add(n, n),)) for n in range(1, 9)]
        with self.endpoint(script) as endpoint:
            events = await self.finish(self.start(endpoint, limits=Limits(turns=2)))
            assert len(endpoint.requests) == 3
            assert "your next message is the last" in str(endpoint.requests[2].body)
        assert [event.limit for event in only(events, LimitReached)] == ["turns"]
        end = last(events)
        assert (end.reason, end.turns, end.tool_calls, end.result) == ("limit", 3, 2, "3")

    async def test_calls_over_the_limit_are_not_run(self) -> None:
        done: list[str] = []
        script = [Reply(tools=(self.add(1, 1), self.add(2, 2))), Reply(text="that is all")]
        events = await self.play(
            script, limits=Limits(tool_calls=1), mcp_config={"lab": tools(done)}
        )
        assert len(done) == 1
        assert (last(events).reason, last(events).result) == ("limit", "that is all")

    async def test_a_limit_on_tokens_holds(self) -> None:
        script = [Reply(text=str(n), tools=(self.add(),), input_tokens=50) for n in range(9)]
        events = await self.play(script, limits=Limits(tokens=100))
        assert [event.limit for event in only(events, LimitReached)] == ["tokens"]
        assert last(events).turns == 3

    async def test_a_limit_on_cost_holds_with_one_turn_to_conclude(self) -> None:
        script = [
            Reply(text=str(n), tools=(self.add(),), input_tokens=1000, output_tokens=0)
            for n in range(9)
        ]
        price = Price(input=2000.0, output=1.0)
        events = await self.play(script, limits=Limits(cost_usd=3.0), price=price)
        assert [event.limit for event in only(events, LimitReached)] == ["cost_usd"]
        end = last(events)
        assert (end.reason, end.turns, end.result) == ("limit", 3, "2")
        assert end.cost_usd == 6.0

    async def test_a_tool_past_the_time_limit_is_stopped_and_the_agent_concludes(self) -> None:
        script = [Reply(tools=(self.use("forever"),)), Reply(text="in time")]
        with self.endpoint(script) as endpoint:
            server = tools(in_forever=lambda: run.set_limits(Limits(seconds=0.001)))
            run = self.start(endpoint, mcp_config={"lab": server})
            events = await self.finish(run)
        assert [event.limit for event in only(events, LimitReached)] == ["seconds"]
        assert (last(events).reason, last(events).result) == ("limit", "in time")

    async def test_a_vendor_that_never_answers_is_cut_off(self) -> None:
        limits = Limits(seconds=1, conclude_seconds=1)
        events = await self.play([Fault(kind="hang")], limits=limits)
        assert last(events).reason == "limit"

    # --- failures ------------------------------------------------

    async def test_a_wrong_key_ends_the_run_at_once(self) -> None:
        script = [Fault(kind="status", status=401, message="bad key")] * 9
        with self.endpoint(script) as endpoint:
            events = await self.finish(self.start(endpoint))
            assert len(endpoint.requests) <= 2
        assert fatal(events).kind == "authentication"
        assert last(events).reason == "error"

    async def test_a_rate_limit_is_waited_out(self) -> None:
        script = [Fault(kind="status", status=429, retry_after=1), Reply(text="now")]
        events = await self.play(script)
        assert [(error.kind, error.fatal) for error in only(events, ErrorEvent)] == [
            ("rate_limit", False)
        ]
        assert last(events).result == "now"

    async def test_an_overloaded_vendor_is_given_up_on_after_a_few_tries(self) -> None:
        script = [Fault(kind="status", status=503, message="busy")] * 20
        with self.endpoint(script) as endpoint:
            events = await self.finish(self.start(endpoint))
            assert 1 < len(endpoint.requests) <= 10
        assert fatal(events).kind == "overloaded"

    async def test_a_cut_connection_is_tried_again(self) -> None:
        events = await self.play([Fault(kind="cut"), Reply(text="whole")])
        assert [error.fatal for error in only(events, ErrorEvent)] == [False]
        assert last(events).result == "whole"

    async def test_a_malformed_answer_ends_as_an_error(self) -> None:
        events = await self.play([Fault(kind="malformed")] * 9)
        assert fatal(events).kind in {"malformed", "connection"}
        assert last(events).reason == "error"

    async def test_an_unreachable_vendor_ends_as_an_error(self) -> None:
        with self.endpoint([]) as endpoint:
            run = self.start(endpoint)
        events = await self.finish(run)
        assert fatal(events).kind == "connection"

    async def test_a_tool_server_that_dies_in_a_call_leaves_one_turn_to_conclude(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "dying.py"
        path.write_text(DYING)
        server = {"type": "stdio", "command": sys.executable, "args": [str(path)]}
        script = [Reply(tools=(self.use("die"),)), Reply(text="I lost my tools")]
        events = await self.play(script, mcp_config={"lab": server})
        error = fatal(events)
        assert error.kind == "tool_server"
        assert "the final output" in error.message
        assert (last(events).reason, last(events).result) == ("error", "I lost my tools")

    # --- ending ------------------------------------------------

    async def test_breaking_off_at_a_call_prevents_it_and_leaves_nothing(self) -> None:
        done: list[str] = []
        before = children()
        with self.endpoint([Reply(tools=(self.add(),)), Reply(text="ok")]) as endpoint:
            run = self.start(endpoint, mcp_config={"lab": tools(done)})
            with anyio.fail_after(self.patience):
                async for event in run:
                    if isinstance(event, ToolCall):
                        break
                await run.aclose()
        assert done == []
        assert children() <= before
        assert open_run(run.run_id).status == "cancelled"

    async def test_an_exception_in_the_consumer_leaves_nothing(self) -> None:
        before = children()
        with self.endpoint([Reply(tools=(self.use("forever"),))]) as endpoint:
            run = self.start(endpoint)
            with anyio.fail_after(self.patience):
                try:
                    async for event in run:
                        if isinstance(event, ToolCall):
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    await run.aclose()
        assert children() <= before
        assert open_run(run.run_id).status == "cancelled"

    async def test_cancelling_the_iteration_leaves_nothing(self) -> None:
        before = children()
        with self.endpoint([Reply(tools=(self.use("forever"),))]) as endpoint:
            run = self.start(endpoint)
            working = anyio.Event()

            async def consume() -> None:
                async for event in run:
                    if isinstance(event, ToolCall):
                        working.set()

            with anyio.fail_after(self.patience):
                async with anyio.create_task_group() as group:
                    group.start_soon(consume)
                    await working.wait()
                    group.cancel_scope.cancel()
        assert children() <= before
        assert open_run(run.run_id).status == "cancelled"

    async def test_runs_at_once_do_not_mix(self) -> None:
        async def one(number: int) -> None:
            def echo(request: Request) -> Reply:
                assert f"number {number}!" in str(request.body)
                return Reply(text=f"answer {number}")

            events = await self.play([echo], task=f"number {number}!")
            assert last(events).result == f"answer {number}"

        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(one, number)
