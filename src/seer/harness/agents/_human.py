"""A person in place of the agent, with the same tools, limits and record."""

import json
import shlex
from collections.abc import Mapping
from typing import Any, cast

from seer.errors import ConfigError
from seer.events import ImageBlock, Text, ToolInfo
from seer.harness._agent import Agent, AgentRequest
from seer.harness._context import AgentContext, RunOver
from seer.harness._toolbox import ToolOutcome
from seer.harness.terminal._terminal import Terminal, open_terminal

HELP = """\
NAME key=value ...    call a tool; values are JSON, or text
NAME {"key": ...}     call a tool with a JSON object
/tools                the tools, with their parameters
/task                 the task again
/done [TEXT]          finish, with your conclusions
anything else         say it"""


class HumanAgent(Agent):
    """The provider `human`."""

    name = "human"
    uses_terminal = True

    def __init__(self, terminal: Terminal | None = None) -> None:
        self._terminal = terminal

    def check(self, request: AgentRequest) -> None:
        """Refuse built-in tools, because a person has none."""
        if request.builtin_tools:
            raise ConfigError("builtin_tools", request.builtin_tools, "a person has none")

    def model_name(self, request: AgentRequest) -> str | None:
        """None, because a person is not a model."""
        return None

    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        """Ask the person until they are done."""
        context.takes_no_messages = "the agent is a person at a terminal"
        terminal = self._terminal or open_terminal()
        terminal.complete([*(tool.name for tool in context.tools), "/tools", "/task", "/done"])
        terminal.status(lambda: _status(context))
        _introduce(request, terminal)
        while (line := await terminal.ask("you> ")) is not None:
            try:
                if not await self._take(line.strip(), request, context, terminal):
                    return
            except RunOver:
                terminal.say("That was the last turn.")
                raise

    async def _take(
        self, line: str, request: AgentRequest, context: AgentContext, terminal: Terminal
    ) -> bool:
        """Execute a line; False when the person is done."""
        word, _, rest = line.partition(" ")
        tools = {tool.name: tool for tool in context.tools}
        if not line:
            return True
        if word == "/done":
            if rest.strip():
                context.begin_turn()
                context.emit(Text(text=rest.strip()))
            return False
        if word == "/tools":
            terminal.say("\n".join(_describe(tool) for tool in tools.values()) or "no tools")
        elif word == "/task":
            _introduce(request, terminal)
        elif word.startswith("/"):
            terminal.say(HELP)
        elif word in tools:
            await self._call(tools[word], rest, context, terminal)
        else:
            context.begin_turn()
            context.emit(Text(text=line))
        return True

    async def _call(
        self, tool: ToolInfo, rest: str, context: AgentContext, terminal: Terminal
    ) -> None:
        try:
            arguments = parse_arguments(rest)
        except ValueError as error:
            terminal.say(f"{error}; for example: {tool.name} key=value")
            return
        context.begin_turn()
        call_id = f"human_{context.meter.turns}"
        with terminal.watch(context.interrupt):
            async with context.exchange():
                outcome = await context.call_tool(call_id, tool.name, arguments=arguments)
                _show(outcome, terminal)


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse arguments as a person writes them.

    Raises:
        ValueError: They are neither a JSON object nor `key=value` words.
    """
    text = text.strip()
    if text.startswith("{"):
        found = json.loads(text)
        return cast("dict[str, Any]", found)
    arguments: dict[str, Any] = {}
    for word in shlex.split(text):
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"{word!r} is not key=value")
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value
    return arguments


def _introduce(request: AgentRequest, terminal: Terminal) -> None:
    parts = [request.system_prompt, request.task, "(/help shows what you can do)"]
    terminal.say("\n\n".join(part for part in parts if part))


def _describe(tool: ToolInfo) -> str:
    properties = cast("Mapping[str, Mapping[str, Any]]", tool.input_schema.get("properties") or {})
    parameters = ", ".join(
        f"{name}: {item.get('type', 'any')}" for name, item in properties.items()
    )
    first = tool.description.strip().splitlines()[:1]
    return f"{tool.name}({parameters})" + (f"  {first[0]}" if first else "")


def _show(outcome: ToolOutcome, terminal: Terminal) -> None:
    images = sum(isinstance(block, ImageBlock) for block in outcome.content)
    mark = "failed: " if outcome.is_error else ""
    terminal.say(f"{mark}{outcome.text}" + (f"\n({images} images)" if images else ""))


def _status(context: AgentContext) -> str:
    meter = context.meter
    limit = f"/{meter.limits.tool_calls}" if meter.limits.tool_calls is not None else ""
    return f"{meter.turns} turns, {meter.tool_calls}{limit} tool calls"
