"""Telling an agent what happened before, in a run that continues another."""

import json
from collections.abc import Sequence

from seer.events import Event, RunStarted, Text, ToolCall, ToolResult, UserMessage

_OPENING = (
    "You continue work that is under way. Below is everything that happened so far; the tools are "
    "in the state that these calls left them in. Go on from there.\n\n<history>\n"
)


def with_history(task: str, history: Sequence[Event]) -> str:
    """The first message of an agent that cannot be given its history in another way."""
    if not history:
        return task
    parts = [line for event in history if (line := _line(event))]
    return _OPENING + "\n\n".join(parts) + "\n</history>" + (f"\n\n{task}" if task else "")


def _line(event: Event) -> str:
    if isinstance(event, RunStarted):
        return f"[task]\n{event.task}"
    if isinstance(event, UserMessage):
        return f"[user]\n{event.text}"
    if isinstance(event, Text):
        return f"[you]\n{event.text}"
    if isinstance(event, ToolCall):
        return f"[you called {event.name}]\n{json.dumps(dict(event.arguments))}"
    if isinstance(event, ToolResult):
        images = f"\n({len(event.images)} images)" if event.images else ""
        return f"[result of {event.name}]\n{event.text}{images}"
    return ""
