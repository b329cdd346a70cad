"""OpenTelemetry spans of a run, for a program that has configured OpenTelemetry.

It starts tracing itself, without an agent.
"""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from seer._redact import register_secrets
from seer.environment import SandboxConfig, ScopedSandbox
from seer.events import parse_event
from seer.harness import Call, Expect, Scripted, Step, run_agent
from seer.runs import GateCall
from seer.runs.export._tracing import Tracing


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What the program's own exporter gets."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def get_tracer(name: str) -> trace.Tracer:
        return provider.get_tracer(name)

    monkeypatch.setattr(trace, "get_tracer", get_tracer)
    yield exporter
    provider.shutdown()


def tools() -> MCPServer:
    server: MCPServer = MCPServer("lab")

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def broken() -> str:
        """Fail."""
        raise ValueError("no")

    server.tool()(add)
    server.tool()(broken)
    return server


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_run_its_turns_and_its_tools_are_spans(spans: InMemorySpanExporter) -> None:
    agent = Scripted(
        [
            Step(
                text="secret words",
                usage={"input_tokens": 10, "output_tokens": 2},
                calls=(
                    Call(tool="add", arguments={"a": 1, "b": 2}),
                    Call(tool="broken", expect=Expect(error=True)),
                ),
            ),
            Step(text="done", usage={"input_tokens": 20, "output_tokens": 1}),
        ]
    )
    run = run_agent("x", {"lab": tools()}, provider=agent, record=False)
    with anyio.fail_after(60):
        async for _ in run:
            continue
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {
        "invoke_agent scripted",
        "chat scripted",
        "execute_tool add",
        "execute_tool broken",
    }
    root = found["invoke_agent scripted"]
    assert root.context is not None
    for name, span in found.items():
        assert span.end_time is not None
        assert span.start_time is not None
        assert span.end_time >= span.start_time
        if span is not root:
            assert span.parent is not None, name
            assert span.parent.span_id == root.context.span_id
    assert attributes(root)["seer.reason"] == "completed"
    assert attributes(root)["gen_ai.conversation.id"] == run.run_id
    turns = [span for span in spans.get_finished_spans() if span.name == "chat scripted"]
    assert [attributes(span)["gen_ai.usage.input_tokens"] for span in turns] == [10, 20]
    assert found["execute_tool broken"].status.status_code is trace.StatusCode.ERROR
    assert "secret words" not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_a_call_of_the_gate_is_a_span_with_its_times(spans: InMemorySpanExporter) -> None:
    tracing = Tracing()
    started = {"type": "run_started", "time": 90.0, "provider": "p", "model": "m", "run_id": "r"}
    tracing.event(parse_event(started))
    call = GateCall(
        interface="tools",
        caller="lab-1",
        function="grid",
        arguments="[[],{}]",
        outcome="ValueError",
        time=100.0,
        queue=1.0,
        run=2.0,
    )
    tracing.call(call)
    [span] = spans.get_finished_spans()
    assert (span.name, span.start_time, span.end_time) == ("seer.gate grid", 97 * 10**9, 10**11)
    assert attributes(span)["seer.caller"] == "lab-1"
    assert attributes(span)["error.type"] == "ValueError"


STARTED = {
    "type": "run_started",
    "time": 90.0,
    "provider": "claude",
    "model": "m",
    "run_id": "r",
    "system_prompt": "be kind",
    "task": "add",
    "tools": [{"name": "add", "description": "Add."}],
}
TURN = [
    {"type": "text", "time": 91.0, "turn": 1, "text": "I add."},
    {
        "type": "tool_call",
        "time": 92.0,
        "turn": 1,
        "id": "c1",
        "name": "add",
        "arguments": {"a": 1, "key": "sk-tracing-0123456789"},
    },
    {
        "type": "usage",
        "time": 93.0,
        "turn": 1,
        "input_tokens": 30,
        "output_tokens": 4,
        "cache_read_tokens": 20,
        "cache_write_tokens": 5,
        "cost_usd": 0.5,
    },
    {
        "type": "answer_finished",
        "time": 94.0,
        "turn": 1,
        "reason": "tool_calls",
        "vendor_reason": "tool_use",
        "model": "m-2026",
    },
    {
        "type": "tool_result",
        "time": 96.0,
        "turn": 1,
        "id": "c1",
        "name": "add",
        "content": [{"type": "text", "text": "3"}],
        "is_error": False,
    },
    {"type": "run_finished", "time": 97.0, "turn": 1, "reason": "completed", "tokens": 34},
]


def play(tracing: Tracing) -> None:
    for event in [STARTED, *TURN]:
        tracing.event(parse_event(event))


def test_spans_follow_the_conventions(spans: InMemorySpanExporter) -> None:
    play(Tracing())
    found = {span.name: span for span in spans.get_finished_spans()}
    chat = found["chat m"]
    assert {key: attributes(chat)[key] for key in attributes(chat) if key.startswith("gen_ai")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m-2026",
        "gen_ai.response.finish_reasons": ("tool_use",),
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 20,
        "gen_ai.usage.cache_creation.input_tokens": 5,
    }
    assert (chat.start_time, chat.end_time) == (90 * 10**9, 94 * 10**9)
    tool = attributes(found["execute_tool add"])
    assert (tool["gen_ai.tool.call.id"], tool["gen_ai.tool.type"]) == ("c1", "function")
    assert "gen_ai.tool.call.arguments" not in tool
    root = attributes(found["invoke_agent claude"])
    assert (root["gen_ai.usage.input_tokens"], root["gen_ai.usage.output_tokens"]) == (30, 4)


def test_a_gate_call_told_of_later_lies_under_the_tool_call_it_was_made_in(
    spans: InMemorySpanExporter,
) -> None:
    tracing = Tracing()
    for event in [STARTED, *TURN[:-1]]:
        tracing.event(parse_event(event))
    times = {"tools": 95.0, "before": 91.0}
    for name, time in times.items():
        call = GateCall(
            interface="lab",
            caller="c",
            function=name,
            arguments="[[],{}]",
            outcome="ok",
            time=time,
            queue=0.0,
            run=0.5,
            tool_call="c1" if name == "tools" else "",
        )
        tracing.call(call)
    tracing.event(parse_event(TURN[-1]))
    found = {span.name: span for span in spans.get_finished_spans()}
    tool, root = found["execute_tool add"], found["invoke_agent claude"]
    assert tool.context is not None and root.context is not None
    parents = {name: found[f"seer.gate {name}"].parent for name in times}
    assert parents["tools"] is not None and parents["before"] is not None
    assert parents["tools"].span_id == tool.context.span_id
    assert parents["before"].span_id == root.context.span_id


def test_content_is_in_spans_only_where_it_is_wanted_and_never_with_secrets(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_secrets(("sk-tracing-0123456789",))
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    play(Tracing())
    found = {span.name: attributes(span) for span in spans.get_finished_spans()}
    assert "I add." in found["chat m"]["gen_ai.output.messages"]
    assert "be kind" in found["invoke_agent claude"]["gen_ai.system_instructions"]
    assert found["execute_tool add"]["gen_ai.tool.call.result"] == '["3"]'
    assert "sk-tracing" not in found["execute_tool add"]["gen_ai.tool.call.arguments"]


def test_tokens_and_durations_are_measured(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    play(Tracing())
    data: Any = reader.get_metrics_data()
    found = {one.name: one for one in data.resource_metrics[0].scope_metrics[0].metrics}
    assert set(found) == {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"}
    tokens = {
        point.attributes["gen_ai.token.type"]: point.sum
        for point in found["gen_ai.client.token.usage"].data.data_points
    }
    assert tokens == {"input": 30, "output": 4}
    provider.shutdown()


def test_turns_leave_nothing_behind_without_a_provider(spans: InMemorySpanExporter) -> None:
    def held() -> int:
        gc.collect()
        modules = (type(found).__module__ for found in gc.get_objects())
        return sum(module.startswith(metrics.__name__) for module in modules)

    play(Tracing())
    before = held()
    for _ in range(5):
        play(Tracing())
    assert held() == before


INTERFACE = '''
@expose
def double(x: int) -> int:
    """Twice x."""
    return 2 * x
'''


@pytest.mark.full
async def test_calls_that_pass_the_gate_are_spans_of_the_run(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    (tmp_path / "lab.py").write_text(INTERFACE)
    scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local"))
    await scoped.astart()
    try:
        lab: Any = await scoped.aserve(tmp_path / "lab.py", expose_as="mcp")
        agent = Scripted([Step(text="hm", calls=(Call(tool="double", arguments={"x": 4}),))])
        run = run_agent("look", provider=agent, mcp_servers=[lab])
        with anyio.fail_after(60):
            async for _ in run:
                continue
    finally:
        await scoped.aterminate()
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {
        *("invoke_agent scripted", "chat scripted", "execute_tool double", "seer.gate double"),
    }
    tool, call = found["execute_tool double"], found["seer.gate double"]
    assert tool.context is not None
    assert call.parent is not None
    assert call.parent.span_id == tool.context.span_id
    assert attributes(call)["rpc.service"] == "lab"
    assert attributes(call)["seer.outcome"] == "ok"
    assert tool.start_time is not None and tool.end_time is not None
    assert call.start_time is not None and call.end_time is not None
    assert tool.start_time - 10**9 <= call.start_time <= call.end_time <= tool.end_time + 10**9
