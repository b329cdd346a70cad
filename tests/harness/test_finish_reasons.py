"""The reason why an answer ended is an event, and only a complete answer completes a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from seer.events import ErrorEvent, Event, Usage
from seer.harness import Limits, Text, ToolResult
from seer.testing import AnthropicEndpoint, GeminiEndpoint, OpenAIEndpoint, VendorEndpoint
from seer.testing.agent_contract import AgentTest, last, only
from seer.testing.vendors import Fault, Reply, ScriptItem, ToolUse

pytestmark = pytest.mark.full

OPENAI = {"provider": "openai:chat", "model": "scripted"}
VENDORS: Mapping[str, tuple[type[VendorEndpoint], Mapping[str, str]]] = {
    "claude": (AnthropicEndpoint, {"provider": "claude"}),
    "chat": (OpenAIEndpoint, OPENAI),
    "responses": (OpenAIEndpoint, {**OPENAI, "provider": "openai:responses"}),
    "gemini": (GeminiEndpoint, {"provider": "gemini", "model": "gemini-3.8-flash"}),
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IS_SANDBOX", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SEER_AGENT_RETRIES", "2")


class Vendor(AgentTest):
    def __init__(self, vendor: str) -> None:
        self._endpoint, self._arguments = VENDORS[vendor]
        self._prefix = "mcp__lab__" if vendor == "claude" else ""

    def endpoint(self, script: Sequence[ScriptItem]) -> VendorEndpoint:
        return self._endpoint(script)

    def arguments(self, endpoint: VendorEndpoint) -> dict[str, Any]:
        return {**self._arguments, "base_url": endpoint.url}

    def wire_name(self, tool: str) -> str:
        return self._prefix + tool


@dataclass(frozen=True)
class Row:
    vendor: str
    word: str
    """The vendor's own word; empty: the stream ends without one."""
    means: str
    error: str | None
    text: str | None = "so far"
    refusal: str | None = None
    asked: int = 1
    """How many answers of this kind the vendor's own agent asks for before it gives up."""


TABLE = [
    Row("claude", "end_turn", "stop", None),
    Row("claude", "max_tokens", "length", "incomplete", asked=4),
    Row("claude", "pause_turn", "paused", "incomplete"),
    Row("claude", "refusal", "refused", "refused"),
    Row("claude", "refusal", "refused", "refused", text=None),
    Row("claude", "end_turn", "stop", "malformed", text=None, asked=2),
    Row("chat", "stop", "stop", None),
    Row("chat", "length", "length", "incomplete"),
    Row("chat", "content_filter", "refused", "refused"),
    Row("chat", "content_filter", "refused", "refused", text=None),
    Row("chat", "stop", "refused", "refused", text=None, refusal="I will not."),
    Row("chat", "", "unfinished", "incomplete"),
    Row("chat", "from_another_world", "other", "incomplete"),
    Row("chat", "stop", "stop", "malformed", text=None, asked=2),
    Row("responses", "max_output_tokens", "length", "incomplete"),
    Row("responses", "content_filter", "refused", "refused"),
    Row("responses", "completed", "refused", "refused", text=None, refusal="I will not."),
    Row("responses", "", "unfinished", "incomplete"),
    Row("responses", "completed", "stop", "malformed", text=None, asked=2),
    Row("gemini", "STOP", "stop", None),
    Row("gemini", "MAX_TOKENS", "length", "incomplete"),
    Row("gemini", "SAFETY", "refused", "refused"),
    Row("gemini", "PROHIBITED_CONTENT", "refused", "refused", text=None),
    Row("gemini", "OTHER", "other", "incomplete"),
    Row("gemini", "", "unfinished", "incomplete"),
    Row("gemini", "STOP", "stop", "malformed", text=None, asked=2),
    Row("gemini", "MALFORMED_FUNCTION_CALL", "malformed_call", "malformed", text=None, asked=2),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.vendor}-{row.word}-{row.error}")
async def test_only_a_whole_answer_completes_a_run(row: Row) -> None:
    plain = row.word in {"end_turn", "stop", "completed", "STOP"}
    reply = Reply(text=row.text, refusal=row.refusal, finish=None if plain else row.word)
    subject = Vendor(row.vendor)
    with subject.endpoint([reply] * 9) as endpoint:
        events = await subject.finish(subject.start(endpoint))
        # After a refusal, Claude's CLI asks again by itself. Seer stops it then, maybe a bit late.
        late = row.vendor == "claude" and row.means == "refused"
        assert len(endpoint.requests) in ({1, 2} if late else {row.asked})
    ends = _ends(events)
    assert len(ends) == row.asked
    assert (ends[-1]["reason"], ends[-1]["model"]) == (row.means, _model(row.vendor))
    if row.refusal is None:
        assert ends[-1]["vendor_reason"] == (row.word or None)
    fatal = [error.kind for error in only(events, ErrorEvent) if error.fatal]
    assert fatal == ([row.error] if row.error else [])
    assert last(events).reason == ("error" if row.error else "completed")
    assert last(events).result == (row.text or row.refusal or "")
    assert {event.text for event in only(events, Text)} == {row.text or row.refusal} - {None}
    assert len(only(events, Usage)) == row.asked


def _ends(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [event.to_json() for event in events if event.type == "answer_finished"]


def _model(vendor: str) -> str:
    return {"claude": "claude-opus-5-5"}.get(vendor, "scripted")


@pytest.mark.parametrize("vendor", ["chat", "gemini"])
async def test_a_blocked_or_empty_answer_is_told_to_the_model_once(vendor: str) -> None:
    subject = Vendor(vendor)
    bad = Reply(finish="MALFORMED_FUNCTION_CALL") if vendor == "gemini" else Reply()
    with subject.endpoint([bad, Reply(text="better")]) as endpoint:
        events = await subject.finish(subject.start(endpoint))
        told = str(endpoint.requests[1].body)
    assert "call" in told if vendor == "gemini" else "empty" in told
    assert [error.fatal for error in only(events, ErrorEvent)] == [False]
    assert (last(events).reason, last(events).result) == ("completed", "better")


@pytest.mark.parametrize("vendor", ["chat", "responses", "gemini"])
async def test_a_cut_answer_that_calls_tools_goes_on(vendor: str) -> None:
    subject = Vendor(vendor)
    word = {"chat": "length", "responses": "max_output_tokens", "gemini": "MAX_TOKENS"}[vendor]
    script = [Reply(tools=(subject.add(),), finish=word), Reply(text="3")]
    events = await subject.play(script)
    assert [end["reason"] for end in _ends(events)] == ["length", "stop"]
    assert [result.text for result in only(events, ToolResult)] == ["3"]
    assert last(events).reason == "completed"


@pytest.mark.parametrize("vendor", ["claude", "chat", "responses"])
async def test_no_money_is_not_tried_again_and_said_in_words(vendor: str) -> None:
    code = {"chat": "insufficient_quota", "responses": "insufficient_quota"}.get(vendor)
    status = 402 if code is None else 429
    fault = Fault(kind="status", status=status, message="You have no credit left.", code=code)
    subject = Vendor(vendor)
    with subject.endpoint([fault] * 9) as endpoint:
        events = await subject.finish(subject.start(endpoint))
        assert len(endpoint.requests) == 1
    (error,) = only(events, ErrorEvent)
    assert (error.kind, error.fatal) == ("quota", True)
    assert "You have no credit left." in error.message
    assert "{" not in error.message


@pytest.mark.parametrize("vendor", list(VENDORS))
async def test_what_a_vendor_says_is_shown_as_text(vendor: str) -> None:
    fault = Fault(kind="status", status=400, message="the seed must be a number")
    events = await Vendor(vendor).play([fault] * 9)
    # On a busy machine a connection may fail; it is tried again, and an event says so.
    (error,) = (one for one in only(events, ErrorEvent) if one.fatal)
    assert error.kind == "request"
    assert "the seed must be a number" in error.message
    assert "{" not in error.message


@pytest.mark.parametrize("vendor", ["chat", "responses", "gemini"])
async def test_an_error_within_a_stream_is_tried_again(vendor: str) -> None:
    broken = Fault(kind="broken", status=503, message="Overloaded", reply=Reply(text="par"))
    events = await Vendor(vendor).play([broken, Reply(text="whole")])
    (error,) = only(events, ErrorEvent)
    assert (error.kind, error.fatal) == ("overloaded", False)
    assert "Overloaded" in error.message
    assert last(events).result == "whole"


async def test_an_error_within_claudes_stream_is_recorded_and_what_was_used_is_counted() -> None:
    subject = Vendor("claude")
    calls = (subject.add(1, 1), subject.add(2, 2))
    reply = Reply(text="part", tools=calls, input_tokens=100)
    broken = Fault(kind="broken", status=529, message="Overloaded", reply=reply)
    events = await subject.play([broken, Reply(text="done")], limits=Limits(tokens=100))
    assert [(end["turn"], end["reason"]) for end in _ends(events)] == [
        (1, "unfinished"),
        (2, "stop"),
    ]
    assert [event.input_tokens for event in only(events, Usage)] == [100, 10]
    (error,) = only(events, ErrorEvent)
    assert (error.kind, error.fatal, error.turn) == ("overloaded", False, 1)
    assert all("limit of 100 tokens" in result.text for result in only(events, ToolResult))
    end = last(events)
    assert (end.reason, end.tool_calls, end.result) == ("limit", 0, "done")


async def test_a_conversation_goes_on_after_an_answer_that_was_cut() -> None:
    subject = Vendor("chat")
    script = [Reply(text="cut he", finish="length"), Reply(text="whole")]
    with subject.endpoint(script) as endpoint:
        run = subject.start(endpoint, interactive=True)
        events: list[Event] = []
        async for event in run:
            events.append(event)
            if isinstance(event, Text):
                run.send("go on" if event.text == "cut he" else None)
    assert [(error.kind, error.fatal) for error in only(events, ErrorEvent)] == [
        ("incomplete", False)
    ]
    assert (last(events).reason, last(events).result) == ("completed", "whole")


async def test_a_tool_call_that_was_not_whole_is_told_to_the_model() -> None:
    subject = Vendor("gemini")
    bad = Reply(tools=(ToolUse(name="add", arguments={"a": 1}),))
    events = await subject.play([bad, Reply(text="I see")])
    assert [result.is_error for result in only(events, ToolResult)] == [True]
    assert last(events).reason == "completed"
