"""OpenTelemetry spans of a run: the run, its turns, tool calls and calls of the gate.

Off unless the program has configured OpenTelemetry: without its API installed nothing is imported,
and without a provider of the program's own the API's spans cost next to nothing. Names and
attributes follow OpenTelemetry's conventions for generative AI. Prompts, answers and arguments are
not put into spans; they are in the record.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seer.runs._calls import GateCall

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class Tracing:
    """The spans of one run, made from its events in their JSON form."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = _tracer()
        self._run: Span | None = None
        self._turn: Span | None = None
        self._turn_number = 0
        self._tools: dict[str, Span] = {}
        self._model = ""
        self._quiet_since = 0

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
        elif kind in {"text", "thinking", "tool_call", "usage"}:
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
        """Take one call of the gate."""
        if self._tracer is None or self._run is None:
            return
        from opentelemetry.trace import SpanKind, set_span_in_context

        span = self._tracer.start_span(
            f"seer.gate {call.function}",
            context=set_span_in_context(self._run),
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

    def _start(self, data: Mapping[str, Any], now: int) -> None:
        from opentelemetry.trace import SpanKind

        assert self._tracer is not None
        self._model = str(data.get("model") or data["provider"])
        self._run = self._tracer.start_span(
            f"invoke_agent {data['provider']}",
            kind=SpanKind.CLIENT,
            start_time=now,
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": data["provider"],
                "gen_ai.request.model": self._model,
                "gen_ai.conversation.id": data["run_id"],
                "seer.session": str(data.get("session") or ""),
            },
        )

    def _within_turn(self, data: Mapping[str, Any], now: int) -> None:
        if data["turn"] != self._turn_number:
            self._end_turn(now)
            self._turn_number = data["turn"]
            # The vendor was asked when the agent had last been heard of.
            self._turn = self._child(f"chat {self._model}", self._quiet_since or now)
            self._turn.set_attribute("gen_ai.operation.name", "chat")
            self._turn.set_attribute("gen_ai.request.model", self._model)
        if data["type"] == "usage" and self._turn is not None:
            self._turn.set_attribute("gen_ai.usage.input_tokens", data["input_tokens"])
            self._turn.set_attribute("gen_ai.usage.output_tokens", data["output_tokens"])
            if data["cost_usd"] is not None:
                self._turn.set_attribute("seer.cost_usd", data["cost_usd"])
        elif data["type"] == "tool_call":
            self._end_turn(now)
            span = self._child(f"execute_tool {data['name']}", now)
            span.set_attribute("gen_ai.operation.name", "execute_tool")
            span.set_attribute("gen_ai.tool.name", data["name"])
            span.set_attribute("gen_ai.tool.call.id", data["id"])
            self._tools[data["id"]] = span

    def _end_tool(self, data: Mapping[str, Any], now: int) -> None:
        span = self._tools.pop(data["id"], None)
        if span is None:
            return
        if data["is_error"]:
            span.set_attribute("error.type", "tool_error")
            _fail(span, "the tool failed")
        span.end(now)

    def _end_turn(self, now: int) -> None:
        if self._turn is not None:
            self._turn.end(now)
            self._turn = None

    def _finish(self, data: Mapping[str, Any], now: int) -> None:
        assert self._run is not None
        self._end_turn(now)
        for span in self._tools.values():
            span.end(now)
        self._tools.clear()
        self._run.set_attribute("seer.reason", data["reason"])
        self._run.set_attribute("gen_ai.usage.total_tokens", data["tokens"])
        if data["reason"] == "error":
            self._run.set_attribute("error.type", "error")
            _fail(self._run, data["message"])
        self._run.end(now)

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


def _fail(span: "Span", message: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, message)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
