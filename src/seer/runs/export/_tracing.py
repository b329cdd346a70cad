"""OpenTelemetry spans and metrics of a run: the run, its turns, tool calls and calls of the gate.

Off unless the program has configured OpenTelemetry: without its API installed nothing is imported,
and without a provider of the program's own the API's spans cost next to nothing. Names and
attributes follow OpenTelemetry's conventions for generative AI. Prompts, answers and arguments are
in the record, and in spans only where the conventions' own variable asks for them.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from seer._redact import Redactor
from seer.runs._calls import GateCall

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram
    from opentelemetry.trace import Span, Tracer

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_PROVIDERS = {"claude": "anthropic", "gemini": "gcp.gemini"}
"""As the conventions spell vendors; other agents have their own names."""
_COUNTS = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
}
_CLOCKS = 0.05
"""Seconds by which the times of two processes may disagree."""


@dataclass
class _Turn:
    """An answer of the model; its span ends with the last that was heard of it."""

    number: int
    span: "Span"
    started: int
    ended: int
    parts: list[dict[str, Any]]
    model: str
    usage: Mapping[str, Any] | None = None


@dataclass
class _Tool:
    """A tool call; calls of the gate may be told of after it has ended."""

    name: str
    span: "Span"
    started: float
    ended: float | None = None


class Tracing:
    """The spans of one run, made from its events in their JSON form."""

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

    def event(self, data: Mapping[str, Any]) -> None:
        """Take one event."""
        if self._tracer is None:
            return
        now = _nanoseconds(data["time"])
        kind = data["type"]
        if kind == "run_started":
            self._start(data, now)
        elif self._run is None:
            return
        elif kind in {"text", "thinking", "tool_call", "usage", "answer_finished"}:
            self._within_turn(data, now)
        elif kind == "tool_result":
            self._end_tool(data, now)
        elif kind == "error":
            self._run.add_event("error", {"error.type": data["kind"]}, timestamp=now)
        elif kind == "limit_reached":
            self._run.add_event("seer.limit", {"seer.limit": data["limit"]}, timestamp=now)
        elif kind == "run_finished":
            self._finish(data, now)
        self._quiet_since = now

    def call(self, call: GateCall) -> None:
        """Take one call of the gate; it belongs to the tool call that it was made in."""
        if self._tracer is None or self._run is None:
            return
        from opentelemetry.trace import SpanKind, set_span_in_context

        span = self._tracer.start_span(
            f"seer.gate {call.function}",
            context=set_span_in_context(self._around(call) or self._run),
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

    def _around(self, call: GateCall) -> "Span | None":
        """The tool call within which a call of the gate began: the one of its name, or the last."""
        fits = [
            tool
            for tool in self._tools.values()
            if tool.started - _CLOCKS <= call.started
            and (tool.ended is None or call.started <= tool.ended + _CLOCKS)
        ]
        named = [tool for tool in fits if tool.name.rpartition("__")[2] == call.function]
        chosen = named or fits
        return chosen[-1].span if chosen else None

    def _start(self, data: Mapping[str, Any], now: int) -> None:
        from opentelemetry.trace import SpanKind

        assert self._tracer is not None
        provider = str(data["provider"])
        self._common = {
            "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
            "gen_ai.request.model": str(data.get("model") or provider),
        }
        for tool in cast("list[dict[str, Any]]", data.get("tools") or []):
            self._descriptions[tool["name"]] = tool["description"]
        self._run = self._tracer.start_span(
            f"invoke_agent {provider}",
            kind=SpanKind.CLIENT,
            start_time=now,
            attributes={
                **self._common,
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": provider,
                "gen_ai.conversation.id": data["run_id"],
                "seer.session": str(data.get("session") or ""),
            },
        )
        self._say(self._run, "gen_ai.system_instructions", [_text(data.get("system_prompt"))])
        asked = [{"role": "user", "parts": [_text(data.get("task"))]}]
        self._say(self._run, "gen_ai.input.messages", asked)

    def _within_turn(self, data: Mapping[str, Any], now: int) -> None:
        turn = self._turn
        if turn is None and data["turn"] == self._answered:
            # Agents that make their calls one by one go on after the first result.
            if data["type"] == "tool_call":
                self._start_tool(data, now)
            return
        if turn is None or turn.number != data["turn"]:
            self._end_turn()
            # The vendor was asked when the agent had last been heard of.
            started = self._quiet_since or now
            model = self._common["gen_ai.request.model"]
            span = self._child(f"chat {model}", started)
            span.set_attributes({**self._common, "gen_ai.operation.name": "chat"})
            turn = self._turn = _Turn(data["turn"], span, started, now, [], model)
        turn.ended = now
        if data["type"] == "usage":
            turn.usage = data
            turn.span.set_attributes({name: data.get(key) or 0 for key, name in _COUNTS.items()})
            if data["cost_usd"] is not None:
                turn.span.set_attribute("seer.cost_usd", data["cost_usd"])
        elif data["type"] == "answer_finished":
            turn.model = data["model"] or turn.model
            turn.span.set_attribute("gen_ai.response.model", turn.model)
            reason = data["vendor_reason"] or data["reason"]
            turn.span.set_attribute("gen_ai.response.finish_reasons", [reason])
        elif data["type"] == "tool_call":
            turn.parts.append({"type": "tool_call", "id": data["id"], "name": data["name"]})
            self._start_tool(data, now)
        elif data["type"] == "text":
            turn.parts.append(_text(data["text"]))

    def _start_tool(self, data: Mapping[str, Any], now: int) -> None:
        span = self._child(f"execute_tool {data['name']}", now)
        span.set_attributes(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": data["name"],
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": data["id"],
                "gen_ai.tool.description": self._descriptions.get(data["name"], ""),
            }
        )
        self._say(span, "gen_ai.tool.call.arguments", data["arguments"])
        self._tools[data["id"]] = _Tool(data["name"], span, data["time"])

    def _end_tool(self, data: Mapping[str, Any], now: int) -> None:
        self._end_turn()
        tool = self._tools.get(data["id"])
        if tool is None or tool.ended is not None:
            return
        if data["is_error"]:
            tool.span.set_attribute("error.type", "tool_error")
            _fail(tool.span, "the tool failed")
        given = [part["text"] for part in data["content"] if part["type"] == "text"]
        self._say(tool.span, "gen_ai.tool.call.result", given)
        tool.ended = data["time"]
        tool.span.end(now)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        self._answered = turn.number
        answer = [{"role": "assistant", "parts": turn.parts}]
        self._say(turn.span, "gen_ai.output.messages", answer)
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
        for key in _COUNTS:
            self._totals[key] += turn.usage.get(key) or 0
        for kind in ("input", "output"):
            tokens.record(turn.usage[f"{kind}_tokens"], {**common, "gen_ai.token.type": kind})

    def _finish(self, data: Mapping[str, Any], now: int) -> None:
        assert self._run is not None
        self._end_turn()
        for tool in self._tools.values():
            if tool.ended is None:
                tool.ended = data["time"]
                tool.span.end(now)
        self._run.set_attribute("seer.reason", data["reason"])
        self._run.set_attributes({name: self._totals[key] for key, name in _COUNTS.items()})
        if data["reason"] == "error":
            self._run.set_attribute("error.type", "error")
            _fail(self._run, data["message"])
        self._run.end(now)

    def _say(self, span: "Span", name: str, value: object) -> None:
        """Put content into a span, without secrets, where it is wanted."""
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

    meter = metrics.get_meter("seer")
    return (
        meter.create_histogram("gen_ai.client.token.usage", unit="{token}"),
        meter.create_histogram("gen_ai.client.operation.duration", unit="s"),
    )


def _text(text: object) -> dict[str, Any]:
    return {"type": "text", "content": str(text or "")}


def _fail(span: "Span", message: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, message)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
