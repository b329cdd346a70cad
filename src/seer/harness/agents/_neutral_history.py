"""The events of an earlier run as messages of the model-neutral library."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seer.events import Event, RunStarted, Text, ToolCall, ToolResult, UserMessage

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage


def to_messages(events: Sequence[Event]) -> "list[ModelMessage]":
    """The events of an earlier run as the library's messages."""
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    messages: list[ModelMessage] = []
    said: list[Any] = []
    heard: list[Any] = []

    def flush(said: list[Any], heard: list[Any]) -> None:
        if said:
            messages.append(ModelResponse(parts=list(said)))
            said.clear()
        if heard:
            messages.append(ModelRequest(parts=list(heard)))
            heard.clear()

    for event in events:
        if isinstance(event, (Text, ToolCall)) and heard:
            flush(said, heard)
        if isinstance(event, RunStarted):
            heard.append(UserPromptPart(event.task))
        elif isinstance(event, UserMessage):
            flush(said, heard)
            heard.append(UserPromptPart(event.text))
        elif isinstance(event, Text):
            said.append(TextPart(event.text))
        elif isinstance(event, ToolCall):
            said.append(ToolCallPart(event.name, dict(event.arguments), event.id))
        elif isinstance(event, ToolResult):
            part = ToolReturnPart(tool_name=event.name, content=event.text, tool_call_id=event.id)
            heard.append(part)
    flush(said, heard)
    return messages
