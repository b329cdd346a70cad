"""Records of other versions of Seer open: what cannot be read is kept as it is."""

from pathlib import Path
from typing import Any

import pytest

from seer.events import (
    RunStarted,
    Text,
    ToolCall,
    ToolInfo,
    UnknownEvent,
    event_from_json,
    parse_event,
)
from seer.runs import RunRecord, compare_runs, open_run

NEWER: list[dict[str, Any]] = [
    {"type": "dream", "seq": 4, "time": 12.5, "turn": 3, "about": ["sheep"]},
    {"type": "tool_result", "seq": 1, "time": 1.0, "turn": 1, "id": "c", "name": "n", "content": 7},
    {"type": "tool_result", "id": "c", "name": "n", "content": [{"type": "film", "url": "x"}]},
    {"type": "text", "turn": 1},
    {"type": "run_started", "run_id": "r", "provider": "p", "tools": ["python"]},
    {"no": "type", "turn": "three"},
]


@pytest.mark.parametrize("data", NEWER)
def test_an_event_that_cannot_be_read_is_kept_as_it_was_recorded(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        event_from_json(data)
    event = parse_event(data)
    assert isinstance(event, UnknownEvent)
    assert event.to_json() == data
    assert event.turn == (data["turn"] if isinstance(data.get("turn"), int) else 0)


def test_unknown_fields_of_known_events_are_ignored() -> None:
    tool = {"name": "python", "server": "lab", "colour": "red"}
    data = {"type": "run_started", "run_id": "r", "provider": "p", "tools": [tool], "mood": "good"}
    event = parse_event(data)
    assert event == RunStarted(
        run_id="r", provider="p", tools=(ToolInfo(name="python", server="lab"),)
    )


def test_a_record_with_an_event_of_a_newer_version_opens(tmp_path: Path) -> None:
    names = ("20260101-000000-aaaaaaaa", "20260101-000000-bbbbbbbb")
    for name in names:
        record = RunRecord.create(tmp_path, name, meta={"provider": "scripted"})
        record.event(Text(text="one", turn=1).to_json())
        if name == names[0]:
            record.event(NEWER[0])
        record.event(ToolCall(id="1", name="python", turn=2).to_json())
        record.close("completed")
    left, right = (open_run(name, tmp_path) for name in names)
    assert [event.type for event in left.typed_events()] == ["text", "unknown", "tool_call"]
    comparison = compare_runs(left, right)
    assert (comparison.same, comparison.equal) == (2, True)
