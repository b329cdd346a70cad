"""OpenTelemetry spans and metrics of a run: the run, its turns, tool calls and calls of the gate.

Nothing is traced unless the program has configured OpenTelemetry. Without its API, nothing is
imported; without a provider, the API's spans cost almost nothing. Names and attributes follow
OpenTelemetry's conventions for generative AI. Prompts, answers and arguments are in the record.
They are in spans only if the environment variable of these conventions (`CONTENT`) asks for them.
"""

import functools
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from seer._redact import Redactor
from seer.events import (
    AnswerFinished,
    ErrorEvent,
    Event,
    LimitReached,
    RunFinished,
    RunStarted,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from seer.events._events import text_blocks
from seer.runs._calls import GateCall

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import Span, Tracer

AnswerPart: TypeAlias = Text | Thinking | ToolCall | Usage | AnswerFinished
"""An event that belongs to an answer of the model."""

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_PROVIDERS = {"claude": "anthropic", "gemini": "gcp.gemini"}
"""The vendors' names in the conventions; other agents keep their own names."""
_COUNTS = {  # by the fields of `Usage`
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
}


@dataclass
class _Turn:
    """An answer of the model; its span ends with the last event of the answer."""

    number: int
    span: "Span"
    started: int
    ended: int
    parts: list[dict[str, Any]]
    model: str
    usage: Usage | None = None


@dataclass
class _Tool:
    """A tool call. Its gate calls can be reported after it has ended."""

    span: "Span"
    ended: bool = False


class Tracing:
    """The spans of one run, made from its events."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = _tracer()
        self._run: Span | None = None
        self._turn: _Turn | None = None
        self._tools: dict[str, _Tool] = {}
        self._descriptions: dict[str, str] = {}
        self._common: dict[str, Any] = {}
        self._totals = dict.fromkeys(_COUNTS, 0)
        self._quiet_since = 0
        self._answered = -1
        """The last turn whose span has ended."""
        wanted = os.environ.get(CONTENT, "").lower()
        self._content = wanted in {"true", "span_only", "span_and_event"}
        self._redact = Redactor().redact

    def event(self, event: Event) -> None:
        """Add one event."""
        if self._tracer is None:
            return
        now = _nanoseconds(event.time)
        if isinstance(event, RunStarted):
            self._start(event, now)
        if (run := self._run) is None:
            return
        match event:
            case Text() | Thinking() | ToolCall() | Usage() | AnswerFinished():
                self._within_turn(event, now)
            case ToolResult():
                self._end_tool(event, now)
            case ErrorEvent():
                run.add_event("error", {"error.type": event.kind}, timestamp=now)
            case LimitReached():
                run.add_event("seer.limit", {"seer.limit": event.limit}, timestamp=now)
            case RunFinished():
                self._finish(event, now)
            case _:
                pass
        self._quiet_since = now

    def call(self, call: GateCall) -> None:
        """Add one gate call; its span belongs to the tool call that made it."""
        if self._tracer is None or self._run is None:
            return
        from opentelemetry.trace import SpanKind, set_span_in_context

        tool = self._tools.get(call.tool_call)
        span = self._tracer.start_span(
            f"seer.gate {call.function}",
            context=set_span_in_context(tool.span if tool else self._run),
            kind=SpanKind.SERVER,
            start_time=_nanoseconds(call.started),
            attributes={
                "rpc.system": "seer",
                "rpc.service": call.interface,
                "rpc.method": call.function,
                "seer.caller": call.caller,
                "seer.outcome": call.outcome,
                "seer.queue_seconds": call.queue,
                "seer.run_seconds": call.run,
                "seer.batch": call.batch,
                "seer.bytes_in": call.bytes_in,
                "seer.bytes_out": call.bytes_out,
            },
        )
        if call.outcome != "ok":
            span.set_attribute("error.type", call.outcome)
            _fail(span, call.outcome)
        span.end(_nanoseconds(call.time))

    def _start(self, event: RunStarted, now: int) -> None:
        from opentelemetry.trace import SpanKind

        assert self._tracer is not None
        self._common = {
            "gen_ai.provider.name": _PROVIDERS.get(event.provider, event.provider),
            "gen_ai.request.model": event.model or event.provider,
        }
        for tool in event.tools:
            self._descriptions[tool.name] = tool.description
        self._run = self._tracer.start_span(
            f"invoke_agent {event.provider}",
            kind=SpanKind.CLIENT,
            start_time=now,
            attributes={
                **self._common,
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": event.provider,
                "gen_ai.conversation.id": event.run_id,
                "seer.session": event.session or "",
            },
        )
        self._add_content(self._run, "gen_ai.system_instructions", [_text(event.system_prompt)])
        asked = [{"role": "user", "parts": [_text(event.task)]}]
        self._add_content(self._run, "gen_ai.input.messages", asked)

    def _within_turn(self, event: AnswerPart, now: int) -> None:
        turn = self._turn
        if turn is None and event.turn == self._answered:
            # An agent that makes its calls one by one continues after the first result.
            if isinstance(event, ToolCall):
                self._start_tool(event, now)
            return
        if turn is None or turn.number != event.turn:
            self._end_turn()
            # The vendor was asked right after the event before this one.
            started = self._quiet_since or now
            model = self._common["gen_ai.request.model"]
            span = self._child(f"chat {model}", started)
            span.set_attributes({**self._common, "gen_ai.operation.name": "chat"})
            turn = self._turn = _Turn(event.turn, span, started, now, [], model)
        turn.ended = now
        match event:
            case Usage():
                turn.usage = event
                turn.span.set_attributes({_COUNTS[key]: n for key, n in _counts(event).items()})
                if event.cost_usd is not None:
                    turn.span.set_attribute("seer.cost_usd", event.cost_usd)
            case AnswerFinished():
                turn.model = event.model or turn.model
                turn.span.set_attribute("gen_ai.response.model", turn.model)
                reason = event.vendor_reason or event.reason
                turn.span.set_attribute("gen_ai.response.finish_reasons", [reason])
            case ToolCall():
                turn.parts.append({"type": "tool_call", "id": event.id, "name": event.name})
                self._start_tool(event, now)
            case Text():
                turn.parts.append(_text(event.text))
            case Thinking():
                pass

    def _start_tool(self, event: ToolCall, now: int) -> None:
        span = self._child(f"execute_tool {event.name}", now)
        span.set_attributes(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": event.name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": event.id,
                "gen_ai.tool.description": self._descriptions.get(event.name, ""),
            }
        )
        self._add_content(span, "gen_ai.tool.call.arguments", event.to_json()["arguments"])
        self._tools[event.id] = _Tool(span)

    def _end_tool(self, event: ToolResult, now: int) -> None:
        self._end_turn()
        tool = self._tools.get(event.id)
        if tool is None or tool.ended:
            return
        if event.is_error:
            tool.span.set_attribute("error.type", "tool_error")
            _fail(tool.span, "the tool failed")
        self._add_content(tool.span, "gen_ai.tool.call.result", text_blocks(event.content))
        tool.ended = True
        tool.span.end(now)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        self._answered = turn.number
        answer = [{"role": "assistant", "parts": turn.parts}]
        self._add_content(turn.span, "gen_ai.output.messages", answer)
        turn.span.end(turn.ended)
        self._measure(turn)

    def _measure(self, turn: _Turn) -> None:
        common = {
            **self._common,
            "gen_ai.operation.name": "chat",
            "gen_ai.response.model": turn.model,
        }
        tokens, seconds = _instruments()
        seconds.record((turn.ended - turn.started) / 1e9, common)
        if turn.usage is None:
            return
        counts = _counts(turn.usage)
        for key, count in counts.items():
            self._totals[key] += count
        for kind in ("input", "output"):
            tokens.record(counts[f"{kind}_tokens"], {**common, "gen_ai.token.type": kind})

    def _finish(self, event: RunFinished, now: int) -> None:
        assert self._run is not None
        self._end_turn()
        for tool in self._tools.values():
            if not tool.ended:
                tool.ended = True
                tool.span.end(now)
        self._run.set_attribute("seer.reason", event.reason)
        self._run.set_attributes({name: self._totals[key] for key, name in _COUNTS.items()})
        if event.reason == "error":
            self._run.set_attribute("error.type", "error")
            _fail(self._run, event.message)
        self._run.end(now)

    def _add_content(self, span: "Span", name: str, value: object) -> None:
        """Put content into a span, without secrets, if the user asked for content."""
        if self._content:
            span.set_attribute(name, self._redact(json.dumps(value, ensure_ascii=False)))

    def _child(self, name: str, start: int) -> "Span":
        from opentelemetry.trace import SpanKind, set_span_in_context

        assert self._tracer is not None and self._run is not None
        return self._tracer.start_span(
            name,
            context=set_span_in_context(self._run),
            kind=SpanKind.CLIENT if name.startswith("chat") else SpanKind.INTERNAL,
            start_time=start,
        )


def _tracer() -> "Tracer | None":
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("seer")


def _instruments() -> "tuple[Histogram, Histogram]":
    """What the conventions measure: tokens, and the seconds of an answer."""
    from opentelemetry import metrics

    return _instruments_of(metrics.get_meter_provider())


@functools.lru_cache(maxsize=1)
def _instruments_of(provider: "MeterProvider") -> "tuple[Histogram, Histogram]":
    # Once, because a program without a provider of its own keeps each one that was made.
    meter = provider.get_meter("seer")
    return (
        meter.create_histogram("gen_ai.client.token.usage", unit="{token}"),
        meter.create_histogram("gen_ai.client.operation.duration", unit="s"),
    )


def _counts(usage: Usage) -> dict[str, int]:
    """The token counts of an answer, by the names of `_COUNTS`."""
    return {name: getattr(usage, name) for name in _COUNTS}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _fail(span: "Span", message: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, message)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
