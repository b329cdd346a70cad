"""An agent that says and does again what a recorded one did.

Its tool calls are real: they reach the tools of the present run. In a replay their results must be
the recorded ones, and the first that is not ends the run with both shown side by side. For a fork
the calls only bring a fresh session to where the recorded one was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from seer.errors import ConfigError
from seer.harness._agent import Agent, AgentRequest, find_agent
from seer.harness._events import (
    Block,
    Event,
    RunStarted,
    Text,
    TextBlock,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    event_from_json,
)
from seer.harness._seat import RunOver, Seat
from seer.harness._toolbox import ToolOutcome
from seer.runs import Run, open_run


class ReplayAgent(Agent):
    """The provider `replay:RUN`."""

    name = "replay"

    def __init__(self, run: Run | None = None) -> None:
        self._run = run

    @classmethod
    def from_argument(cls, name: str) -> Self:
        """Replay the run of this name or folder.

        Raises:
            RunNotFoundError: There is none.
        """
        return cls(open_run(name))

    def check(self, request: AgentRequest) -> None:
        """A run must be named, and vendors' own tools cannot be replayed."""
        if self._run is None:
            raise ConfigError("provider", "replay", "say which run: replay:RUN")
        if request.builtin_tools:
            raise ConfigError("builtin_tools", request.builtin_tools, "a replay has none")

    def model_name(self, request: AgentRequest) -> str | None:
        """The recorded model."""
        return None if self._run is None else self._run.meta.get("model")

    async def run(self, request: AgentRequest, seat: Seat) -> None:
        """Do all of it again."""
        assert self._run is not None
        await play(recorded_events(self._run), seat, strict=True)


class Forked(Agent):
    """An agent that goes on from a turn of an earlier run: `Forked(run, turn=3, agent=...)`.

    Turns up to `turn` are played into the present session, then `agent` takes over and knows what
    happened.
    """

    def __init__(self, run: Run, *, turn: int, agent: Agent | str) -> None:
        """Fork a run.

        Args:
            run: The earlier run.
            turn: The last turn to take over from it; 0 for none.
            agent: Who goes on, also by name.

        Raises:
            ConfigError: The run has no such turn, or there is no such agent.
        """
        self._events = [event for event in recorded_events(run) if event.turn <= turn]
        last = max((event.turn for event in recorded_events(run)), default=0)
        if not 0 <= turn <= last:
            raise ConfigError("turn", turn, f"run {run.run_id} has turns 1 to {last}")
        self._agent = find_agent(agent) if isinstance(agent, str) else agent
        self._task = str(run.meta.get("task") or "")
        self.name = self._agent.name

    def check(self, request: AgentRequest) -> None:
        """What the agent that goes on checks."""
        self._agent.check(request)

    def model_name(self, request: AgentRequest) -> str | None:
        """The model of the agent that goes on."""
        return self._agent.model_name(request)

    def secrets(self, request: AgentRequest) -> tuple[str, ...]:
        """Those of the agent that goes on."""
        return self._agent.secrets(request)

    async def run(self, request: AgentRequest, seat: Seat) -> None:
        """Play the turns, then hand over; a new task is said after them."""
        seat.history = []
        await play(self._events, seat, strict=False)
        began = RunStarted(
            run_id="", provider="", model=None, system_prompt="", task=self._task, tools=()
        )
        history = (began, *seat.history)
        seat.history = None
        task = request.task if request.task != self._task else ""
        await self._agent.run(replace(request, history=history, task=task), seat)


def recorded_events(run: Run) -> list[Event]:
    """The events of a recorded run."""
    return [event_from_json(data) for data in run.events()]


async def play(events: Sequence[Event], seat: Seat, *, strict: bool) -> None:
    """Do again what the events say.

    Args:
        events: Of the recorded run.
        seat: Where it is done now.
        strict: Whether results must be the recorded ones.

    Raises:
        RunOver: A result differs; the divergence was reported.
    """
    results = {event.id: event for event in events if isinstance(event, ToolResult)}
    turn = 0
    for event in events:
        if event.turn > turn:
            turn = event.turn
            seat.begin_turn()
        if isinstance(event, (Text, Thinking, UserMessage)):
            seat.emit(event)
        elif isinstance(event, Usage):
            seat.emit(replace(event, total_tokens=0, total_cost_usd=None))
        elif isinstance(event, ToolCall):
            outcome = await seat.call_tool(event.id, event.name, arguments=event.arguments)
            if strict:
                _compare(event, results, outcome, seat)


def _compare(
    call: ToolCall, results: Mapping[str, ToolResult], outcome: ToolOutcome, seat: Seat
) -> None:
    recorded = results.get(call.id)
    if recorded is None or seat.limit is not None:
        return  # the record ends within this call, or this run is more limited than that one
    same = recorded.content == outcome.content and recorded.is_error == outcome.is_error
    if same or _only_notice_differs(recorded.content, outcome.content):
        return
    seat.fail(
        "divergence",
        f"the result of {call.name} ({call.id}) is not the recorded one:\n"
        f"  recorded: {_show(recorded.content)}\n"
        f"  now:      {_show(outcome.content)}",
    )
    raise RunOver


def _only_notice_differs(recorded: tuple[Block, ...], now: tuple[Block, ...]) -> bool:
    """Whether the recorded result differs by the notice of a limit that this run does not have."""
    return (
        len(recorded) == len(now) + 1
        and recorded[:-1] == now
        and isinstance(recorded[-1], TextBlock)
        and recorded[-1].text.endswith("your next message is the last.]")
    )


def _show(content: tuple[Block, ...]) -> str:
    parts = [b.text if isinstance(b, TextBlock) else f"({b.mime_type})" for b in content]
    text = "\n            ".join("\n".join(parts).splitlines())
    return text if len(text) <= 4000 else f"{text[:4000]}... ({len(text)} characters)"
