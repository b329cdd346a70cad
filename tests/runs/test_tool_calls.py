"""A call of the gate carries the id of the tool call in which it was made.

It collects the calls of a gate of its own, to set their times.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from seer.events import ToolCall, ToolResult
from seer.runs import GateCall, RunRecord, open_run
from seer.runs._gate_calls import CallCollector, Followed, ToolCalls


def call(function: str, *, started: float) -> GateCall:
    return GateCall(interface="lab", caller="c", function=function, arguments="[]", time=started)


@pytest.fixture
def tool_calls() -> ToolCalls:
    found = ToolCalls()
    for event in (
        ToolCall(id="cell", name="python", time=10.0),
        ToolCall(id="one", name="lab__grid", time=11.0),
        ToolCall(id="two", name="mean", time=12.0),
        ToolResult(id="one", name="lab__grid", time=13.0),
        ToolResult(id="cell", name="python", time=20.0),
        ToolResult(id="unheard", name="python", time=20.0),
    ):
        found.event(event)
    return found


@pytest.mark.parametrize(
    ("function", "started", "expected"),
    [
        ("grid", 9.0, ""),
        ("grid", 9.96, "cell"),
        ("grid", 12.5, "one"),
        ("other", 12.5, "two"),
        ("mean", 30.0, "two"),
    ],
)
def test_the_tool_call_of_its_name_or_the_last_one_is_chosen(
    tool_calls: ToolCalls, function: str, started: float, expected: str
) -> None:
    assert tool_calls.around(call(function, started=started)) == expected


class Gate:
    """A gate that has answered two calls: one of the run, one of the user's own script."""

    name = "lab"
    dropped = lost = 0
    why = ""
    running: Mapping[str, int] = {}

    def about(self) -> Mapping[str, Any]:
        return {}

    async def weights(self) -> Mapping[str, Any]:
        return {}

    async def follow(self, callers: Sequence[str], *, prefix: str = "") -> "Gate":
        return self

    async def add(self, callers: Sequence[str]) -> int:
        return 0

    async def batches(self) -> AsyncIterator[list[tuple[int, dict[str, Any]]]]:
        line: dict[str, Any] = {"function": "mean", "outcome": "ok", "arguments": []}
        line |= {"result": 1, "time": 12.5}
        yield [(1, {**line, "caller": "session"}), (2, {**line, "caller": "script-1"})]
        await asyncio.Event().wait()

    async def read(self, file: int | str) -> bytes:
        raise AssertionError("nothing was kept in a file")

    async def flush(self) -> int:
        return 2

    async def close(self) -> None:
        return None


async def test_the_record_has_the_id_and_the_script_has_none(
    tmp_path: Path, tool_calls: ToolCalls
) -> None:
    record = RunRecord.create(tmp_path, "20260101-000000-aaaaaaaa", meta={})
    collector = CallCollector(record, tool_calls=tool_calls)
    await collector.follow([Followed(Gate(), lambda: ["session"], prefix="script-")])
    assert await collector.stop() == ""
    record.close("completed")
    lines = list(open_run(record.run_id, tmp_path).calls())
    assert [(line["caller"], line["tool_call"]) for line in lines] == [
        ("session", "two"),
        ("script-1", ""),
    ]
    assert [GateCall.from_json(line).tool_call for line in lines] == ["two", ""]
    old = {key: value for key, value in lines[0].items() if key != "tool_call"}
    assert GateCall.from_json(old).tool_call == "", "records of older versions open"
