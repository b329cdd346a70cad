"""What a running agent gets: its tools, its turns, and the way to report what it does.

Every provider uses this context, so limits hold for all of them in one place, and no tool call
escapes the meter. When a limit is reached, tools answer with a notice instead of working, and the
agent's next turn is its last.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio

from seer.errors import ConfigError, visible
from seer.events import (
    AnswerFinished,
    ApprovalGiven,
    ErrorEvent,
    ErrorKind,
    Event,
    FinishReason,
    LimitReached,
    MessageNotDelivered,
    MessageQueued,
    RunFinished,
    Text,
    TextBlock,
    TextDelta,
    ToolCall,
    ToolInfo,
    ToolResult,
    Usage,
    UserMessage,
    Waiting,
)
from seer.harness._approval import ApprovalPolicy, Approvals
from seer.harness._finish_reasons import problem_of
from seer.harness._limits import Crossing, Limits, Meter, Price
from seer.harness._toolbox import ToolBox, ToolOutcome
from seer.rpc.client._tool_call import tool_call
from seer.runs._tool_calls import ToolCalls

logger = logging.getLogger(__name__)

_UNITS = {
    "turns": "{:g} turns",
    "tool_calls": "{:g} tool calls",
    "seconds": "{:g} seconds",
    "tokens": "{:g} tokens",
    "cost_usd": "{:g} US dollars",
    "stop": "a person asked you to stop",
}


T = TypeVar("T")


class RunOver(Exception):
    """The agent has had its last turn. A signal that unwinds the provider, not an error."""


class AgentContext:
    """The access of one agent in one run to tools, limits and events."""

    def __init__(
        self,
        toolbox: ToolBox,
        *,
        limits: Limits,
        price: Price | None,
        report: Callable[[Event], None],
        consumer_ready: Callable[[], Awaitable[None]],
        interactive: bool = False,
        policies: Mapping[str, ApprovalPolicy],
        tool_calls: ToolCalls,
        asks: bool = False,
        deltas: bool = False,
        redact: Callable[[str], str] = str,
    ) -> None:
        self.meter = Meter(limits)
        self.failure: ErrorEvent | None = None
        self.unfinished: ErrorEvent | None = None
        """The problem with the last answer, in a conversation that continues."""
        self.answer: AnswerFinished | None = None
        """How the last answer to the present message ended, if the vendor reports it."""
        self.limit: LimitReached | None = None
        self.last_text = ""
        self._spoke_in = 0
        self.history: list[Event] | None = None
        """The events so far, if the provider has set this to a list."""
        self._toolbox = toolbox
        self._tool_calls = tool_calls
        self._price = price
        self._report = report
        self._consumer_ready = consumer_ready
        self.interactive = interactive
        """Whether the run waits for a person's message after each answer."""
        self.approvals = Approvals(policies, emit=self.emit, terminal=asks and not interactive)
        """Decides whether a call is made."""
        self._deltas = deltas
        self._redact = redact
        self._seq = 0
        self._started = time.monotonic()
        self.takes_no_messages = ""
        """Why the agent takes no more messages; empty while it may take some."""
        self._inbox: asyncio.Queue[str | None] = asyncio.Queue()
        self._listening = False
        self._conclude_turn: int | None = None
        self._exchange: anyio.CancelScope | None = None
        self._tool_scopes: set[anyio.CancelScope] = set()
        self._over = False
        self._closing_since: float | None = None
        self._changed = asyncio.Event()

    # --- what providers use ----------------------------------------------------------------

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        """The tools the agent is offered."""
        return self._toolbox.tools

    def concurrent(self, name: str) -> bool:
        """Whether calls of the tool may run at the same time as others."""
        return self._toolbox.concurrent(name)

    def begin_turn(self) -> None:
        """Count a turn, before the agent is asked for an answer.

        Raises:
            RunOver: It has had its last turn.
        """
        if self._conclude_turn is not None and self.meter.turns > self._conclude_turn:
            raise RunOver
        self.meter.turns += 1

    def emit(self, event: Event) -> None:
        """Report what the agent did. The context fills in `seq`, `time`, `turn` and totals."""
        if isinstance(event, TextDelta) and not self._deltas:
            return
        if isinstance(event, Usage):
            event = self._count(event)
        if isinstance(event, Text):
            self.last_text, self._spoke_in = event.text, self.meter.turns
        if isinstance(event, AnswerFinished):
            self.answer = event
        event = dataclasses.replace(event, seq=self._seq, time=time.time(), turn=self.meter.turns)
        self._seq += 1
        if self.history is not None:
            self.history.append(event)
        self._report(event)
        if isinstance(event, Usage):
            self._check_usage(event)

    async def call_tool(
        self, call_id: str, name: str, *, arguments: Mapping[str, Any], raw: object = None
    ) -> ToolOutcome:
        """Report a call, run it and report its result."""
        server = self._toolbox.server_of(name)
        self.emit(ToolCall(id=call_id, name=name, server=server, arguments=arguments, raw=raw))
        outcome = await self.run_tool(name, arguments, call_id=call_id)
        self.emit(
            ToolResult(
                id=call_id,
                name=name,
                content=outcome.content,
                is_error=outcome.is_error,
                structured=outcome.structured,
                seconds=outcome.seconds,
            )
        )
        return outcome

    async def run_tool(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str
    ) -> ToolOutcome:
        """Run a tool without reporting it, for providers whose vendor reports calls itself.

        Raises:
            RunOver: The agent has had its last turn.
        """
        async with self._toolbox.turn(name):
            return await self._run_tool(name, arguments, call_id)

    async def _run_tool(self, name: str, arguments: Mapping[str, Any], call_id: str) -> ToolOutcome:
        await self._consumer_ready()
        if self._tools_closed():
            return self._closed()
        server = self._toolbox.server_of(name)
        if server is not None:
            call = ToolCall(id=call_id, name=name, server=server, arguments=arguments)
            decided = await self._bounded(self.approvals.decide(call))
            if isinstance(decided, ToolOutcome):
                return decided
            if decided is not None and not decided.approved:
                return _denied(decided)
            if self._tools_closed():  # a person decided it, which can take a while
                return self._closed()
        self.meter.tool_calls += server is not None
        with tool_call(self._tool_calls.token(call_id)):
            outcome = await self._bounded(self._toolbox.call(name, arguments))
        if (outcome.lost is not None or outcome.diverged) and self.failure is None:
            self.fail("divergence" if outcome.diverged else "tool_server", outcome.text)
            self._close_tools()
        elif self.limit is None and (crossing := self.meter.last_turn()):
            self.reach(crossing)
        if self._conclude_turn is not None:
            notice = TextBlock(text=self._notice())
            outcome = dataclasses.replace(outcome, content=(*outcome.content, notice))
        return outcome

    def fail(
        self,
        kind: ErrorKind,
        message: str,
        *,
        raw: object = None,
        retry_in: float | None = None,
        log: bool = True,
    ) -> None:
        """Report that the vendor, a tool server or the connection to one of them failed.

        Args:
            kind: What failed.
            message: What happened and what to do.
            raw: The vendor's own error.
            retry_in: Seconds until the provider tries again; None if it does not, and the run ends.
            log: Whether to log the failure too; False if the program gets it as an exception.
        """
        message = self._redact(message)
        event = ErrorEvent(
            kind=kind, message=message, raw=raw, retry_in=retry_in, fatal=retry_in is None
        )
        if retry_in is None:
            self.failure = self.failure or event
            if log:
                logger.error("run failed (%s): %s", kind, visible(message))
        else:
            logger.warning("%s; trying again in %.1f s: %s", kind, retry_in, visible(message))
        self.emit(event)

    async def next_message(self) -> str | None:
        """The next message to the agent after its answer; None if the agent is done."""
        if self._conclude_turn is not None or self.failure is not None:
            return None
        if not self.interactive and self._inbox.empty():
            return None
        if self.interactive:
            self.emit(Waiting())
        self._listening = self._inbox.empty()
        try:
            text = await self._inbox.get()
        finally:
            self._listening = False
        if text is not None:
            self.emit(UserMessage(text=text))
        return text

    @asynccontextmanager
    async def exchange(self) -> AsyncGenerator[None, None]:
        """Encloses the work on one message. `interrupt` ends it, and the conversation continues."""
        with anyio.CancelScope() as scope:
            self._exchange = scope
            self.answer = self.unfinished = None
            try:
                yield
                self._judge()
            finally:
                self._exchange = None

    # --- what the driver uses ----------------------------------------------------------------

    async def watch(self, cut: Callable[[], None]) -> None:
        """Watch the time limits; calls `cut` when the agent must end at once."""
        while not self._over:
            self._changed.clear()
            with anyio.move_on_after(self._time_left()):
                await self._changed.wait()
                continue
            if self._closing_since is not None:
                break
            allowed = self.meter.limits.seconds or 0.0
            self.reach(Crossing("seconds", allowed, time.monotonic() - self._started))
        cut()

    def _time_left(self) -> float | None:
        now = time.monotonic()
        if self._closing_since is not None:
            return max(0.0, self._closing_since + self.meter.limits.conclude_seconds - now)
        if self.meter.limits.seconds is None:
            return None
        return max(0.0, self._started + self.meter.limits.seconds - now)

    @property
    def message_refusal(self) -> str:
        """Why the agent would not get a message that is sent now; empty if it may get it."""
        if self.failure is not None:
            return "the run is ending after an error"
        if self._conclude_turn is not None and not self._listening:
            return "the agent has only its last turn left"
        return self.takes_no_messages

    def send(self, text: str | None) -> None:
        """Queue a message for the agent; None ends an interactive conversation."""
        if text is not None:
            if reason := self.message_refusal:
                self.emit(MessageNotDelivered(text=text, reason=reason))
                return
            if not self._listening:
                self.emit(MessageQueued(text=text))
            self._listening = False
        self._inbox.put_nowait(text)

    def interrupt(self) -> None:
        """End the present exchange; the session and the conversation continue."""
        if self._exchange is not None:
            self._exchange.cancel()

    def set_limits(self, limits: Limits) -> None:
        """Change the limits of a running agent; a limit that is no longer reached is lifted."""
        self.meter.limits = limits
        reached = self.meter.crossed() or self.meter.no_more_tools()
        in_last_turn = self._conclude_turn is not None and self.meter.turns > self._conclude_turn
        if self.limit is not None and reached is None and not in_last_turn:
            self.limit, self._conclude_turn, self._closing_since = None, None, None
        self._changed.set()

    def reach(self, crossing: Crossing) -> None:
        """Close the tools because a limit is reached; the next turn is the last."""
        if self.limit is not None:
            return
        self.limit = LimitReached(
            limit=crossing.limit,
            allowed=crossing.allowed,
            used=crossing.used,
            message=self._limit_text(crossing),
        )
        self._close_tools()
        self.emit(self.limit)

    async def stop_code(self, *, left: bool) -> str:
        """See `ToolBox.stop_code`."""
        return await self._toolbox.stop_code(left=left)

    def finish(self, reason: FinishReason, message: str) -> None:
        """Report the messages that the agent did not get, and the end of the run."""
        while not self._inbox.empty():
            if (text := self._inbox.get_nowait()) is not None:
                why = f"the run ended first ({reason})"
                self.emit(MessageNotDelivered(text=text, reason=why))
        self.emit(
            RunFinished(
                reason=reason,
                message=message,
                result=self.last_text,
                turns=self.meter.turns,
                tool_calls=self.meter.tool_calls,
                seconds=time.monotonic() - self._started,
                tokens=self.meter.tokens,
                cost_usd=self.meter.cost_usd,
            )
        )

    # --- inside ------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Report a problem with the agent's last answer, after the agent is done."""
        if self.failure is not None or self.answer is None:
            return
        empty = self._spoke_in != self.meter.turns
        if (problem := problem_of(self.answer, empty=empty)) is None:
            return
        if not self.interactive:
            self.fail(*problem)
            return
        self.unfinished = ErrorEvent(kind=problem[0], message=problem[1], fatal=False)
        self.emit(self.unfinished)

    def _close_tools(self) -> None:
        self._conclude_turn = self.meter.turns
        self._closing_since = time.monotonic()
        self._changed.set()
        if self.limit is not None and self.limit.limit in {"seconds", "stop"}:
            for scope in self._tool_scopes:
                scope.cancel()

    def _tools_closed(self) -> bool:
        """Whether the tools are closed.

        Raises:
            RunOver: The agent has had its last turn.
        """
        if self.limit is None and (crossing := self.meter.no_more_tools()):
            self.reach(crossing)
        if self._conclude_turn is not None and self.meter.turns > self._conclude_turn:
            self._over = True
            self._changed.set()
            raise RunOver
        return self._conclude_turn is not None

    async def _bounded(self, work: Awaitable[T]) -> T | ToolOutcome:
        """The result of `work`, or an outcome that says that a limit stopped it."""
        with anyio.CancelScope() as scope:
            self._tool_scopes.add(scope)
            try:
                return await work
            finally:
                self._tool_scopes.discard(scope)
        return ToolOutcome(
            content=(TextBlock(text="the call was stopped before it ended"),), is_error=True
        )

    def _closed(self) -> ToolOutcome:
        return ToolOutcome(content=(TextBlock(text=self._notice()),), is_error=True)

    def _notice(self) -> str:
        if self.failure is not None and self.failure.kind == "divergence":
            why = "The replay ends here, so no more tools can be called."
        elif self.failure is not None:
            why = "A tool server has died, so no more tools can be called."
        else:
            why = self.limit.message if self.limit else "Tools are closed."
        return f"[{why} Give your conclusions now: your next message is the last.]"

    def _limit_text(self, crossing: Crossing) -> str:
        amount = _UNITS[crossing.limit].format(crossing.allowed)
        if crossing.limit == "stop":
            return f"No more tools: {amount}."
        return f"The limit of {amount} for this run is reached; no more tools can be called."

    def _count(self, usage: Usage) -> Usage:
        if self._price is not None:
            usage = dataclasses.replace(usage, cost_usd=self._price.cost(usage))
        return self.meter.add(usage)

    def _check_usage(self, usage: Usage) -> None:
        if self.meter.limits.cost_usd is not None and usage.cost_usd is None:
            raise ConfigError(
                "Limits.cost_usd",
                self.meter.limits.cost_usd,
                "no price is known for this model; give run_agent(price=Price(input=, output=))",
            )
        if self.limit is None and (crossing := self.meter.crossed()):
            self.reach(crossing)


def _denied(decided: ApprovalGiven) -> ToolOutcome:
    why = f": {decided.reason}" if decided.reason else ""
    text = f"the call of {decided.name!r} was not approved, so it was not made{why}"
    return ToolOutcome(content=(TextBlock(text=text),), is_error=True)
