"""The text of an event for a person: a few lines, in a chat and during a run.

Text of agents is hostile; `seer.console` filters it when it prints.
"""

import sys
from dataclasses import dataclass

from seer.console import say
from seer.events import (
    ApprovalGiven,
    ErrorEvent,
    Event,
    LimitReached,
    MessageNotDelivered,
    MessageQueued,
    RunFinished,
    RunStarted,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)


@dataclass(frozen=True)
class EventText:
    """A few lines, and their style on a terminal."""

    text: str
    style: str = ""


def event_text(event: Event, *, length: int = 2000) -> EventText | None:
    """The text of an event; None for an event that a person need not see.

    Args:
        event: What happened.
        length: The maximum number of characters of a tool's arguments or result.
    """
    if isinstance(event, RunStarted):
        agent = f"{event.provider} {event.model}" if event.model else event.provider
        return EventText(f"{agent}: {len(event.tools)} tools", "dim")
    if isinstance(event, Text):
        return EventText(event.text)
    if isinstance(event, Thinking):
        return EventText(_indent(event.text, "~ "), "dim")
    if isinstance(event, ApprovalGiven) and event.by != "person":
        mark = "+" if event.approved else "!"
        return EventText(f"{mark} decided by a {event.by}: {event.name}", "dim")
    if isinstance(event, ToolCall):
        return EventText(f"* {event.name}({_short(_arguments(event), length)})", "cyan")
    if isinstance(event, ToolResult):
        images = f" ({len(event.images)} images)" if event.images else ""
        text = _short(event.text, length) + images
        return EventText(_indent(text, "! " if event.is_error else "  "), "red" * event.is_error)
    if isinstance(event, MessageQueued):
        return EventText(_indent(event.text, "> ") + "\n  (waits for the end of the reply)", "dim")
    if isinstance(event, MessageNotDelivered):
        return EventText(f"! message not delivered, {event.summary()}", "red")
    if isinstance(event, (LimitReached, ErrorEvent)):
        return EventText(f"! {event.message}", "red")
    if isinstance(event, RunFinished) and event.reason != "completed":
        return EventText(f"! {event.reason}: {event.message}", "red")
    return None


def show(event: Event) -> None:
    """Show an event of a run on standard error, which keeps it out of the program's output."""
    found = event_text(event, length=600)
    if found is not None and found.text:
        say(found.text, file=sys.stderr, style=found.style)


def _arguments(event: ToolCall) -> str:
    """Arguments as source; a text of several lines, such as code, keeps its lines."""
    parts: list[str] = []
    for key, value in event.arguments.items():
        lines = isinstance(value, str) and "\n" in value.strip()
        parts.append(f"{key}=\n{_indent(value.strip(), '    ')}" if lines else f"{key}={value!r}")
    return ", ".join(parts)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}... ({len(text)} characters)"


def _indent(text: str, mark: str) -> str:
    return "\n".join(mark + line for line in text.splitlines())
