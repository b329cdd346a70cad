"""The Claude CLI calls a tool before the answer that contains the call has ended."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seer.events import ToolInfo
from seer.harness import AgentContext, AgentRequest
from seer.harness._toolbox import offered_names
from seer.harness.agents._claude import Conversation


class _Context:
    """Notes what happens, in order."""

    tools: tuple[ToolInfo, ...] = (
        ToolInfo(name="lab__add", server="lab", description="", input_schema={}),
    )

    def __init__(self) -> None:
        self.seen: list[str] = []

    def concurrent(self, _name: str) -> bool:
        return False

    def begin_turn(self) -> None:
        self.seen.append("turn")

    def fail(self, kind: str, message: str, *, raw: object, retry_in: float) -> None:
        self.seen.append(f"{kind}: {message}; again in {retry_in} s")

    def emit(self, event: object) -> None:
        self.seen.append(type(event).__name__)

    async def run_tool(self, _name: str, _arguments: object, *, call_id: str) -> Any:
        self.seen.append("tool runs")
        return SimpleNamespace(content=(), is_error=False)


class _Sdk:
    """The part of the SDK that a conversation needs to offer tools."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def SdkMcpTool(self, **fields: Any) -> None:
        self.handlers.append(fields["handler"])

    def create_sdk_mcp_server(self, _name: str, *, tools: list[None]) -> int:
        return len(tools)


def _streamed(event: dict[str, Any]) -> Any:
    return type("StreamEvent", (), {"event": event})()


def _asks_for_tool() -> Any:
    block = type("ToolUseBlock", (), {"id": "t1", "name": "mcp__lab__add", "input": {}})()
    fields = {"error": None, "message_id": "m1", "model": "m", "content": [block]}
    return type("AssistantMessage", (), fields)()


@pytest.mark.parametrize(
    "tools",
    [[("s", "s__a"), ("s", "a")], [("a__b", "c"), ("a", "b__c")], [("s", "s__"), ("s", "_")]],
)
async def test_each_tool_has_a_name_of_its_own(tools: list[tuple[str, str]]) -> None:
    context = _Context()
    context.tools = tuple(
        ToolInfo(name=name, server=server)
        for (server, _), name in zip(tools, offered_names(tools), strict=True)
    )
    talk = Conversation(cast("AgentRequest", None), cast("AgentContext", context))
    _, names = talk.serve(_Sdk())
    assert len({*names}) == len(tools)
    assert [talk.names[name] for name in names] == [tool.name for tool in context.tools]


async def test_what_an_answer_used_is_counted_before_its_tool_runs() -> None:
    context = _Context()
    talk = Conversation(cast("AgentRequest", None), cast("AgentContext", context))
    sdk = _Sdk()
    talk.serve(sdk)
    started = {"id": "m1", "model": "m", "usage": {"input_tokens": 1000}}
    await talk.take(_streamed({"type": "message_start", "message": started}))
    await talk.take(_asks_for_tool())
    asked = asyncio.ensure_future(sdk.handlers[0]({}))
    for _ in range(10):
        await asyncio.sleep(0)
    assert "tool runs" not in context.seen
    await talk.take(_streamed({"type": "message_delta", "usage": {"output_tokens": 5}}))
    await asked
    assert context.seen == ["turn", "ToolCall", "Usage", "AnswerFinished", "tool runs"]


async def test_the_last_of_the_retries_is_not_called_the_last_attempt() -> None:
    context = _Context()
    talk = Conversation(cast("AgentRequest", None), cast("AgentContext", context))
    data = {"attempt": 4, "max_retries": 4, "error_status": 529, "retry_delay_ms": 4300}
    await talk.take(type("SystemMessage", (), {"subtype": "api_retry", "data": data})())
    (told,) = context.seen
    assert "(attempt 4 of 5); again in 4.3 s" in told
