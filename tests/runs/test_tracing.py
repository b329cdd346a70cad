"""OpenTelemetry spans of a run, for a program that has configured OpenTelemetry."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from seer.environment import SandboxConfig, ScopedSandbox
from seer.harness import Call, Expect, Scripted, Step, run_agent
from seer.runs import GateCall, Tracing


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
    with anyio.fail_after(20):
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
    tracing.event(started)
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
    root, call = found["invoke_agent scripted"], found["seer.gate double"]
    assert root.context is not None
    assert call.parent is not None
    assert call.parent.span_id == root.context.span_id
    assert attributes(call)["rpc.service"] == "lab"
    assert attributes(call)["seer.outcome"] == "ok"
    tool = found["execute_tool double"]
    assert tool.start_time is not None and tool.end_time is not None
    assert call.start_time is not None and call.end_time is not None
    assert tool.start_time - 10**9 <= call.start_time <= call.end_time <= tool.end_time + 10**9
