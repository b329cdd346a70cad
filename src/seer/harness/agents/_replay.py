"""An agent that repeats what a recorded agent said and did.

Its tool calls are real: they reach the tools of the present run. In a replay, their results must be
the recorded ones; the first difference ends the run with an error that shows both. In a fork, the
calls only bring a new session to the recorded state.

The tools of a whole machine cannot be called without the machine. In a replay, the record answers
them, for every agent.
"""

import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Self

from seer._redact import Redactor
from seer.errors import ConfigError, visible
from seer.events import (
    AnswerFinished,
    ApprovalGiven,
    Block,
    Event,
    RunFinished,
    RunStarted,
    Text,
    TextBlock,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from seer.events._events import raw_json
from seer.harness._agent import Agent, AgentRequest, find_agent
from seer.harness._context import AgentContext, RunOver
from seer.harness._toolbox import ToolOutcome, offered_name
from seer.runs import Run, open_run
from seer.runs._chain import canonical
from seer.runs._compare import CallIds, answers, unlike, without_seconds
from seer.runs._scrub import scrub, scrub_bytes

logger = logging.getLogger(__name__)

LIVE = "SEER_REPLAY_LIVE"
REPLAYED = "SEER_REPLAY"
_NOTICE = "your next message is the last.]"


class ReplayAgent(Agent):
    """The provider `replay:RUN`.

    By name, it replaces all agents of the recorded program: each run of the program gets the
    messages of its own recorded run (with the same prompts, and a session of the same name or else
    the same position among the callers).

    Args:
        run: The recorded run.
        after: The agent that continues where the record ends or differs; if None, a difference is
            an error. With `SEER_REPLAY_LIVE`, it is the agent that this one replaces.
    """

    name = "replay"

    def __init__(
        self,
        run: Run,
        *,
        after: Agent | None = None,
        whole_program: bool = False,
    ) -> None:
        self._run = run
        self._after = after
        self._whole_program = whole_program

    @classmethod
    def from_argument(cls, name: str) -> Self:
        """Replay the run of this name or folder.

        Raises:
            RunNotFoundError: There is no such run.
        """
        return cls(open_run(name), whole_program=True)

    def in_place_of(self, provider: str | Agent) -> Agent:
        """In a live replay, let this provider continue."""
        if not os.environ.get(LIVE):
            return self
        after = find_agent(provider) if isinstance(provider, str) else provider
        return ReplayAgent(self._run, after=after, whole_program=self._whole_program)

    def check(self, request: AgentRequest) -> None:
        """Refuse vendors' own tools, which cannot be replayed."""
        if self._after is not None:
            self._after.check(request)
        elif request.builtin_tools:
            raise ConfigError("builtin_tools", request.builtin_tools, "a replay has none")

    def model_name(self, request: AgentRequest) -> str | None:
        """The recorded model."""
        return self.find(request, play=False).info.model

    def secrets(self, request: AgentRequest) -> tuple[str, ...]:
        """The secrets of the agent that may continue."""
        return () if self._after is None else self._after.secrets(request)

    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        """Repeat the recorded run."""
        played = self.find(request, play=True)
        events = list(played.typed_events())
        if self._after is None:
            context.takes_no_messages = "a replay repeats the recorded messages and takes no others"
            await play(events, context, CallIds(played), differs=_fail)
            return
        context.history = []
        try:
            await play(events, context, CallIds(played), differs=_leave)
            complete = isinstance(events[-1], RunFinished) and events[-1].reason == "completed"
        except _Differs as difference:
            logger.warning("the live agent continues: %s", visible(str(difference)))
            complete = False
        if not complete:
            await _go_on(self._after, played, request, context)

    def find(self, request: AgentRequest, *, play: bool) -> Run:
        """The run to replay for this request: the best match among the runs of the program."""
        if not self._whole_program:
            return self._run
        return _assignments.find(self._run, request, play=play)


class Forked(Agent):
    """An agent that continues from a turn of an earlier run: `Forked(run, turn=3, agent=...)`.

    Turns up to `turn` are repeated in the present session. Then `agent` takes over, with the
    conversation so far. Its name is `forked:RUN@TURN`, or `forked:RUN@TURN=AGENT`.
    """

    def __init__(self, run: Run, *, turn: int, agent: Agent | str) -> None:
        """Fork a run.

        Args:
            run: The earlier run.
            turn: The last turn to take over from it; 0 for none.
            agent: The agent that continues, or its name; an empty name means the program's own
                agent.

        Raises:
            ConfigError: The run has no such turn, or there is no such agent.
        """
        self._run = run
        self._turn = turn
        self.fork_of = (run.run_id, turn)
        events = list(run.typed_events())
        self._events = [event for event in events if event.turn <= turn]
        last = max((event.turn for event in events), default=0)
        if not 0 <= turn <= last:
            raise ConfigError("turn", turn, f"run {run.run_id} has turns 1 to {last}")
        self._agent = (find_agent(agent) if agent else None) if isinstance(agent, str) else agent
        self.name = self._agent.name if self._agent is not None else "forked"

    @classmethod
    def from_argument(cls, text: str) -> Self:
        """Make the agent from `RUN@TURN` or `RUN@TURN=AGENT`.

        Raises:
            ConfigError: The text has another form.
            RunNotFoundError: There is no such run.
        """
        found = re.fullmatch(r"(.+?)@(\d+)(?:=(.+))?", text)
        if found is None:
            raise ConfigError("provider", f"forked:{text}", "must be forked:RUN@TURN[=AGENT]")
        return cls(open_run(found[1]), turn=int(found[2]), agent=found[3] or "")

    def in_place_of(self, provider: str | Agent) -> Agent:
        """If no agent was named, let this one continue."""
        return (
            self if self._agent is not None else Forked(self._run, turn=self._turn, agent=provider)
        )

    def check(self, request: AgentRequest) -> None:
        """Check as the continuing agent does."""
        self._next().check(request)

    def model_name(self, request: AgentRequest) -> str | None:
        """The model of the continuing agent."""
        return self._next().model_name(request)

    def secrets(self, request: AgentRequest) -> tuple[str, ...]:
        """The secrets of the continuing agent."""
        return self._next().secrets(request)

    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        """Repeat the turns, then let the agent continue; a new task follows them."""
        context.history = []
        await play(self._events, context, CallIds(self._run), differs=_ignore)
        await _go_on(self._next(), self._run, request, context)

    def _next(self) -> Agent:
        if self._agent is None:
            raise ConfigError(
                "provider", "forked", "name the agent that continues: forked:RUN@TURN=AGENT"
            )
        return self._agent


class _Assignments:
    """Assigns the runs of a recorded program to the requests of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._played: Counter[str] = Counter()
        self._given: dict[str, Run] = {}

    def find(self, named: Run, request: AgentRequest, *, play: bool) -> Run:
        """The run for this request; the named one if no other fits better.

        Args:
            named: A run of the program.
            request: What the agent is asked.
            play: Whether the run is replayed now, so that the next equal request gets another run.
        """
        if request.run_id in self._given:
            return self._given[request.run_id]

        def fits(item: tuple[int, Run]) -> tuple[object, ...]:
            number, run = item
            differs = unlike(
                run.info,
                task=request.task,
                system_prompt=request.system_prompt,
                callers=request.callers,
            )
            return (differs, self._played[str(run.folder)], number)

        with self._lock:
            _, run = min(enumerate(named.siblings()), key=fits)
            self._played[str(run.folder)] += play
            if play:
                self._given[request.run_id] = run
        return run


_assignments = _Assignments()


def find_recorded(agent: Agent, request: AgentRequest) -> Run:
    """The recorded run that answers the tools of a request on a replayed machine.

    Raises:
        RunNotFoundError: There is no such run.
    """
    if isinstance(agent, ReplayAgent):
        return agent.find(request, play=True)
    return _assignments.find(open_run(os.environ.get(REPLAYED, "")), request, play=True)


class RecordedRun:
    """Answers tool calls with the results of a recorded run; a call that differs is an error.

    Calls must come in their recorded order. Only calls that overlapped may come in another order,
    because their order was chance.

    Args:
        run: The recorded run.
        live: Servers whose tools are called for real.
    """

    def __init__(self, run: Run, live: Container[str]) -> None:
        events = list(run.typed_events())
        calls = [
            (event, result)
            for event, result, approval in _tool_calls(events).values()
            if approval is None or approval.approved
        ]
        self.tools = tuple(
            info
            for event in events
            if isinstance(event, RunStarted)
            for info in event.tools
            if info.server not in live
        )
        self.names = {
            info.name: info.server
            for event in events
            if isinstance(event, RunStarted)
            for info in event.tools
        }
        names = {info.name for info in self.tools}
        self._left = [(call, result) for call, result in calls if call.name in names]
        self._made = 0
        self._redactor = Redactor()

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """The recorded outcome of a call, or what differs."""
        self._made += 1
        now = scrub(raw_json(arguments), self._redactor)
        earliest_end = float("inf")
        for index, (recorded, result) in enumerate(self._left):
            if recorded.time > earliest_end:
                break
            if (recorded.name, canonical(recorded.arguments)) == (name, canonical(now)):
                if result is None:
                    break
                del self._left[index]
                return _as_it_was(result)
            earliest_end = min(earliest_end, recorded.time if result is None else result.time)
        wanted = "no more calls"
        if self._left:
            wanted = _show_call(self._left[0][0].name, self._left[0][0].arguments)
            if self._left[0][1] is None:
                wanted += ", and the record ends before its result"
        text = (
            f"tool call {self._made} is not the recorded one:\n"
            f"  recorded: {wanted}\n"
            f"  now:      {_show_call(name, now)}"
        )
        return ToolOutcome(content=(TextBlock(text=text),), is_error=True, diverged=True)


def _tool_calls(
    events: Sequence[Event],
) -> dict[int, tuple[ToolCall, ToolResult | None, ApprovalGiven | None]]:
    """Each tool call with its result and its approval, by its position among the events."""
    made: dict[int, tuple[ToolCall, ToolResult | None, ApprovalGiven | None]] = {}
    for position, answer in answers(events).items():
        call = events[position]
        result = None if answer.result is None else events[answer.result]
        assert isinstance(call, ToolCall) and isinstance(result, ToolResult | None)
        made[position] = call, result, answer.approval
    return made


def _as_it_was(result: ToolResult) -> ToolOutcome:
    content = result.content
    if content and isinstance(content[-1], TextBlock) and content[-1].text.endswith(_NOTICE):
        # Drop the recorded notice, because this run has its own limits.
        content = content[:-1]
    return ToolOutcome(
        content=content,
        is_error=result.is_error,
        structured=result.structured,
        seconds=result.seconds or 0.0,
    )


def _show_call(name: str, arguments: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"{name}({text if len(text) <= 2000 else f'{text[:2000]}... ({len(text)} characters)'})"


def fork_environment(run: Run, turn: int, *, agent: str | None = None) -> dict[str, str]:
    """The environment variables that make a program continue from a turn of a recorded run.

    Args:
        run: The recorded run.
        turn: The last turn to take over.
        agent: The agent that continues; by default the one that the program names.

    Raises:
        ConfigError: The run has no such turn, or there is no such agent.
    """
    Forked(run, turn=turn, agent=agent or "")
    return {"SEER_AGENT": f"forked:{run.folder}@{turn}" + (f"={agent}" if agent else "")}


async def _go_on(agent: Agent, run: Run, request: AgentRequest, context: AgentContext) -> None:
    """Let an agent continue after the repeated events, which it gets as its history."""
    asked = run.info.task
    began = RunStarted(run_id="", provider="", model=None, system_prompt="", task=asked, tools=())
    history = (began, *(context.history or ()))
    context.history = None
    task = request.task if request.task != asked else ""
    await agent.run(replace(request, history=history, task=task), context)


class _Differs(Exception):
    """The present differs from the record; the message shows both."""


Differs = Callable[[AgentContext, str], None]
"""Called with a result that differs from the recorded one."""


def _fail(context: AgentContext, message: str) -> None:
    context.fail("divergence", message)
    raise RunOver


def _leave(context: AgentContext, message: str) -> None:
    raise _Differs(message)


def _ignore(context: AgentContext, message: str) -> None:
    logger.info("%s", visible(message))


async def play(
    events: Sequence[Event], context: AgentContext, ids: CallIds, *, differs: Differs
) -> None:
    """Repeat the events of a recorded run.

    Args:
        events: The events of the recorded run.
        context: The context of the present run.
        ids: The ids of the recorded run's gate calls.
        differs: Called with a result that differs from the recorded one.
    """
    made = _tool_calls(events)
    offered = {info.name for info in context.tools}
    redactor = Redactor()
    turn = 0
    try:
        for position, event in enumerate(events):
            if event.turn > turn:
                turn = event.turn
                context.begin_turn()
            if isinstance(event, (Text, Thinking, UserMessage, AnswerFinished)):
                context.emit(event)
            elif isinstance(event, Usage):
                context.emit(replace(event, total_tokens=0, total_cost_usd=None))
            elif isinstance(event, ToolCall):
                _, recorded, approval = made[position]
                if event.server is None and recorded is not None and recorded.is_error:
                    # It was never made: its arguments could not be read, or no tool had its name.
                    context.emit(event)
                    context.emit(recorded)
                    continue
                context.approvals.recorded = {event.id: approval} if approval else {}
                # Records of earlier versions may have names that no vendor accepts.
                name = event.name if event.name in offered else offered_name(event.name)
                name = name if name in offered else event.name
                outcome = await context.call_tool(event.id, name, arguments=event.arguments)
                if recorded is None or context.limit is not None:
                    continue  # the record ends within the call, or had other limits than this run
                if difference := _difference(event, recorded, outcome, redactor, ids):
                    differs(context, difference)
    finally:
        context.approvals.recorded = None


def _difference(
    call: ToolCall, recorded: ToolResult, outcome: ToolOutcome, redactor: Redactor, ids: CallIds
) -> str:
    """How a result differs from the recorded one; empty if it does not."""
    now = tuple(_as_recorded(block, redactor) for block in outcome.content)
    before = _without_seconds(call.name, recorded.content)
    after = _with_ids(before, _without_seconds(call.name, now), ids)
    same = before == after or _only_notice_differs(before, after)
    if same and recorded.is_error == outcome.is_error:
        return ""
    return (
        f"the result of {call.name} ({call.id}) is not the recorded one:\n"
        f"  recorded: {_show(recorded.content)}\n"
        f"  now:      {_show(now)}"
    )


def _as_recorded(block: Block, redactor: Redactor) -> Block:
    """A result as a record keeps it, without secrets."""
    if isinstance(block, TextBlock):
        return replace(block, text=redactor.redact(block.text))
    return replace(block, data=scrub_bytes(block.data, redactor))


def _without_seconds(tool: str, content: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(
        replace(block, text=without_seconds(tool, block.text))
        if isinstance(block, TextBlock)
        else block
        for block in content
    )


def _with_ids(before: tuple[Block, ...], now: tuple[Block, ...], ids: CallIds) -> tuple[Block, ...]:
    """The blocks with the record's ids of gate calls."""
    return tuple(
        replace(block, text=ids.as_recorded(old.text, block.text))
        if isinstance(block, TextBlock) and isinstance(old, TextBlock)
        else block
        for old, block in zip_longest(before[: len(now)], now)
    )


def _only_notice_differs(recorded: tuple[Block, ...], now: tuple[Block, ...]) -> bool:
    """Whether the only difference is the notice of a limit that this run does not have."""
    return (
        len(recorded) == len(now) + 1
        and recorded[:-1] == now
        and isinstance(recorded[-1], TextBlock)
        and recorded[-1].text.endswith(_NOTICE)
    )


def _show(content: tuple[Block, ...]) -> str:
    parts = [b.text if isinstance(b, TextBlock) else f"({b.mime_type})" for b in content]
    text = "\n            ".join("\n".join(parts).splitlines())
    return text if len(text) <= 4000 else f"{text[:4000]}... ({len(text)} characters)"
