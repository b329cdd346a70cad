"""Where two runs diverge: the first step that differs.

Times, ids, token counts and names of agents, sessions and servers differ between any two runs, so
they are not compared.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from seer.events import (
    ErrorEvent,
    Event,
    LimitReached,
    RunFinished,
    RunStarted,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from seer.runs._reader import Run

_COMPARED: Mapping[type[Event], tuple[str, ...]] = {
    RunStarted: ("task",),
    UserMessage: ("text",),
    Text: ("text",),
    Thinking: ("text",),
    ToolCall: ("name", "arguments"),
    ToolResult: ("name", "content", "is_error"),
    LimitReached: ("limit",),
    ErrorEvent: ("kind", "message"),
    RunFinished: ("reason",),
}
"""The fields that are compared, by class of event; other events are not compared."""
_SECONDS = re.compile(r"^(\[done in |\[(?:queued|running); |e\d+: \w+, )[0-9.]+ s\b", re.MULTILINE)
"""The run times in results of a session's tools."""


def without_seconds(text: str) -> str:
    """The text of a tool's result without run times, which differ in every run."""
    return _SECONDS.sub(r"\1", text)


@dataclass(frozen=True)
class Step:
    """One thing that was said or done."""

    position: int
    """The index of the event in the record, from 0."""
    type: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Where two runs diverge."""

    same: int
    """The number of equal steps from the start."""
    left: Step | None
    """The first step of the left run that differs; None if the run has no further step."""
    right: Step | None
    calls: tuple[int, int]
    """The number of gate calls in each run."""

    @property
    def equal(self) -> bool:
        """Whether the two runs say and do the same."""
        return self.left is None and self.right is None


def compare_runs(left: Run, right: Run) -> Comparison:
    """Find where two runs diverge.

    Raises:
        RecordError: A record was changed after it was written.
    """
    same = 0
    calls = (sum(1 for _ in left.calls()), sum(1 for _ in right.calls()))
    for a, b in itertools.zip_longest(steps(left), steps(right)):
        if a is None or b is None or _compared(a) != _compared(b):
            return Comparison(same, a, b, calls)
        same += 1
    return Comparison(same, None, None, calls)


def _compared(step: Step) -> tuple[str, Mapping[str, Any]]:
    fields = step.fields
    if step.type == ToolResult.type:
        blocks: list[dict[str, Any]] = fields["content"]
        texts = [block | {"text": without_seconds(block.get("text", ""))} for block in blocks]
        fields = {**fields, "content": texts}
    return step.type, fields


def steps(run: Run) -> Iterator[Step]:
    """What was said and done in a run, in order."""
    for position, event in enumerate(run.typed_events()):
        names = _COMPARED.get(type(event))
        if names is not None:
            data = event.to_json()
            yield Step(position, event.type, {name: data[name] for name in names})
