"""A person at the terminal, who chats with an agent or acts as the agent."""

import asyncio
import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import anyio
import pytest
from mcp.server import MCPServer
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from seer.events import Event
from seer.harness import (
    Call,
    Expect,
    HumanAgent,
    Limits,
    LineTerminal,
    PromptTerminal,
    RunFinished,
    Scripted,
    Step,
    Terminal,
    Text,
    ToolCall,
    ToolResult,
    run_agent,
    run_agent_interactive,
)
from seer.runs import RunIndex, open_run


def talk(*lines: str) -> tuple[LineTerminal, io.StringIO]:
    shown = io.StringIO()
    return LineTerminal(io.StringIO("".join(f"{line}\n" for line in lines)), shown), shown


async def test_a_chat_goes_back_and_forth_and_ends_with_exit(calculator: MCPServer) -> None:
    terminal, shown = talk("hello", "", "/help", "/nonsense", "/tools", "more", "/cost", "/exit")
    agent = Scripted(
        [
            Step(
                text="adding",
                calls=(Call(tool="add", arguments={"a": 1, "b": 2}),),
                usage={"input_tokens": 7, "output_tokens": 3},
            ),
            Step(text="it is 3"),
            Step(text="second answer"),
        ]
    )
    with anyio.fail_after(60):
        end = await run_agent_interactive(
            mcp_config={"c": calculator},
            provider=agent,
            limits=Limits(tokens=1000),
            terminal=terminal,
        )
    text = shown.getvalue()
    for part in ("* add(a=1, b=2)", "  3", "it is 3", "second answer", "10 of 1000 tokens"):
        assert part in text
    assert "scripted: 2 tools; /help for help" in text
    assert text.count("Escape or Ctrl-C interrupts") == 2
    assert "there is no command /nonsense" in text
    assert end is not None
    assert end.reason == "completed"


async def test_the_status_of_a_chat_counts_what_the_limit_counts(calculator: MCPServer) -> None:
    terminal, shown = talk("go", "/cost", "/exit")
    calls = tuple(Call(tool="broken", expect=Expect(error=True)) for _ in range(2))
    agent = Scripted([Step(calls=calls), Step(text="both failed")])
    with anyio.fail_after(60):
        end = await run_agent_interactive(
            mcp_config={"c": calculator},
            provider=agent,
            limits=Limits(tool_calls=3),
            terminal=terminal,
        )
    assert end is not None
    assert end.tool_calls == 2
    assert "2 of 3 tool calls" in shown.getvalue()


async def test_a_chat_that_ends_with_the_input_is_recorded(calculator: MCPServer) -> None:
    terminal, _ = talk("hello")
    agent = Scripted([Step(text="hi"), Step(text="never said")])
    with anyio.fail_after(60):
        await run_agent_interactive(
            mcp_config={"c": calculator}, provider=agent, terminal=terminal, name="chat"
        )
    [run] = RunIndex().list()
    events = list(open_run(run.run_id).events())
    assert [event["type"] for event in events] == [
        *("run_started", "waiting", "user_message", "text", "waiting", "run_finished"),
    ]


class Impatient(Terminal):
    """A person who interrupts at the first tool call and then says one more thing."""

    def __init__(self) -> None:
        self.interrupt: Callable[[], None] = lambda: None
        self.lines = iter(["go", "what happened?", None])
        self.shown: list[str] = []

    async def ask(self, mark: str) -> str | None:
        return next(self.lines)

    def say(self, text: str) -> None:
        self.shown.append(text)
        if text.startswith("* forever"):
            self.interrupt()

    def watch(self, on_interrupt: Callable[[], None]) -> AbstractContextManager[None]:
        self.interrupt = on_interrupt
        return nullcontext()

    def complete(self, words: Sequence[str]) -> None: ...

    def status(self, line: Callable[[], str]) -> None: ...


async def test_an_interrupt_ends_the_turn_and_keeps_the_conversation(
    calculator: MCPServer,
) -> None:
    async def forever() -> str:
        """Never ends."""
        await anyio.sleep_forever()
        return ""

    calculator.tool()(forever)
    agent = Scripted(
        [Step(calls=(Call(tool="forever"),)), Step(text="you stopped me"), Step(text="still here")]
    )
    terminal = Impatient()
    with anyio.fail_after(60):
        end = await run_agent_interactive(
            mcp_config={"c": calculator}, provider=agent, terminal=terminal
        )
    assert "still here" in terminal.shown
    assert end is not None
    assert end.reason == "completed"


async def test_escape_and_ctrl_c_are_told_while_the_agent_works() -> None:
    with create_pipe_input() as keys:
        terminal = PromptTerminal(source=keys, target=DummyOutput())
        for press in ("\x1b", "\x03"):
            pressed = asyncio.Event()
            with terminal.watch(pressed.set):
                keys.send_text(press)
                with anyio.fail_after(30):
                    await pressed.wait()


async def test_an_arrow_key_is_no_escape() -> None:
    with create_pipe_input() as keys:
        terminal = PromptTerminal(source=keys, target=DummyOutput())
        presses: list[int] = []
        pressed = asyncio.Event()

        def interrupt() -> None:
            presses.append(1)
            pressed.set()

        with terminal.watch(interrupt):
            keys.send_text("\x1b[A")
            keys.send_text("\x03")
            with anyio.fail_after(30):
                await pressed.wait()
        assert presses == [1]


async def test_the_prompt_takes_a_line_and_leaves_at_ctrl_d() -> None:
    with create_pipe_input() as keys:
        terminal = PromptTerminal(source=keys, target=DummyOutput())
        terminal.complete(["/help"])
        terminal.status(lambda: "status")
        with anyio.fail_after(30):
            keys.send_text("hel\x03hello\r")
            assert await terminal.ask("> ") == "hello"
            keys.send_text("\x04")
            assert await terminal.ask("> ") is None


def test_control_characters_of_an_agent_do_not_reach_the_terminal() -> None:
    shown = io.StringIO()
    LineTerminal(io.StringIO(), shown).say("a\x1b[31mred\x07\r\n\tb\u202e")
    assert shown.getvalue() == "a\\x1b[31mred\\x07\n\tb\\u202e\n"


# --- a person in the agent's context -----------------------------------------------------------


async def sit(calculator: MCPServer, *lines: str, **more: object) -> tuple[list[Event], str]:
    terminal, shown = talk(*lines)
    limits = more.get("limits")
    assert limits is None or isinstance(limits, Limits)
    run = run_agent("find the sum", {"c": calculator}, provider=HumanAgent(terminal), limits=limits)
    with anyio.fail_after(60):
        return [event async for event in run], shown.getvalue()


async def test_a_person_calls_tools_speaks_and_concludes(calculator: MCPServer) -> None:
    events, shown = await sit(
        calculator,
        "/help",
        "/tools",
        "add a=1 b=2",
        'add {"a": 3, "b": 4}',
        "add nonsense",
        "broken",
        "looks fine",
        "/done the sums are 3 and 7",
    )
    results = [event for event in events if isinstance(event, ToolResult)]
    assert [result.text for result in results[:2]] == ["3", "7"]
    assert results[2].is_error
    assert [event.text for event in events if isinstance(event, Text)] == [
        "looks fine",
        "the sums are 3 and 7",
    ]
    end = events[-1]
    assert isinstance(end, RunFinished)
    assert (end.reason, end.result, end.turns) == ("completed", "the sums are 3 and 7", 5)
    assert "find the sum" in shown
    assert "add(a: integer, b: integer)  Add two numbers." in shown
    assert "'nonsense' is not key=value" in shown


async def test_limits_hold_for_a_person_too(calculator: MCPServer) -> None:
    lines = ("add a=1 b=1", "add a=2 b=2", "my conclusion", "one more thing")
    events, shown = await sit(calculator, *lines, limits=Limits(tool_calls=1))
    assert len([event for event in events if isinstance(event, ToolCall)]) == 2
    end = events[-1]
    assert isinstance(end, RunFinished)
    assert (end.reason, end.result, end.tool_calls) == ("limit", "my conclusion", 1)
    assert "That was the last turn." in shown


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a=1 b=x c='two words' d=[1,2]", {"a": 1, "b": "x", "c": "two words", "d": [1, 2]}),
        ('{"code": "1 + 1"}', {"code": "1 + 1"}),
    ],
)
async def test_arguments_as_people_write_them(
    calculator: MCPServer, text: str, found: dict[str, object]
) -> None:
    events, _ = await sit(calculator, f"add {text}", "/done")
    assert [dict(e.arguments) for e in events if isinstance(e, ToolCall)] == [found]
