"""Which tool call a call of the gate was made in.

The gate knows its caller, and not what an agent's code was run for. The run knows when each tool
call began and ended; so it assigns each call of the gate to a tool call while it records both. This
is the only place that compares their clocks: readers of a record find the id in the call.
"""

from dataclasses import dataclass

from seer.events import Event, ToolCall, ToolResult
from seer.runs._calls import GateCall

_CLOCKS = 0.05
"""Seconds by which the times of two processes may disagree."""


@dataclass
class _Open:
    """A tool call; calls of the gate may be reported after it has ended."""

    id: str
    name: str
    started: float
    ended: float | None = None


class ToolCalls:
    """The tool calls of one run so far."""

    def __init__(self) -> None:
        self._calls: dict[str, _Open] = {}

    def event(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, ToolCall):
            self._calls[event.id] = _Open(event.id, event.name, event.time)
        elif isinstance(event, ToolResult) and event.id in self._calls:
            self._calls[event.id].ended = event.time

    def around(self, call: GateCall) -> str:
        """The id of the tool call within which a call of the gate began; empty where there is none.

        Where several fit, it is the one of the function's own name, else the one that began last.
        """
        # The tolerance only where no tool call fits exactly: calls may follow each other at once.
        fits = self._at(call.started, 0.0) or self._at(call.started, _CLOCKS)
        named = [tool for tool in fits if tool.name.rpartition("__")[2] == call.function]
        chosen = named or fits
        return chosen[-1].id if chosen else ""

    def _at(self, time: float, tolerance: float) -> list[_Open]:
        return [
            tool
            for tool in self._calls.values()
            if tool.started - tolerance <= time
            and (tool.ended is None or time <= tool.ended + tolerance)
        ]
