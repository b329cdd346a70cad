"""A call of the gate carries the id of the tool call that made it.

It collects the calls of a stand-in gate, which can name any tool call.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from seer.runs import GateCall, Run, RunRecord, open_run
from seer.runs._gate_calls import CallCollector, Followed
from seer.runs._tool_calls import ToolCalls


class Gate:
    """A gate that has answered some calls, and says which tool calls they named."""

    name = "lab"
    dropped = lost = 0
    why = ""
    running: Mapping[str, int] = {}

    def __init__(self, *calls: tuple[str, str | None]) -> None:
        self._calls = calls

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
        lines: list[tuple[int, dict[str, Any]]] = []
        for number, (caller, named) in enumerate(self._calls, 1):
            said = {} if named is None else {"tool_call": named}
            lines.append((number, {**line, "caller": caller, **said}))
        yield lines
        await asyncio.Event().wait()

    async def read(self, file: int | str) -> bytes:
        raise AssertionError("nothing was kept in a file")

    async def flush(self) -> int:
        return len(self._calls)

    async def close(self) -> None:
        return None


async def test_the_record_has_the_id_if_the_run_has_such_a_tool_call(tmp_path: Path) -> None:
    tool_calls = ToolCalls()
    one, two, again = (tool_calls.token(key) for key in ("one", "two", "one"))
    assert len({one, two, again, ToolCalls().token("one")}) == 4
    gate = Gate(
        *(("session", named) for named in (two, one, again, "one", "made-up", "", None)),
        ("script-1", one),
    )
    record = RunRecord.create(tmp_path, "20260101-000000-aaaaaaaa", meta={})
    collector = CallCollector(record, tool_calls=tool_calls)
    await collector.follow([Followed(gate, lambda: ["session"], prefix="script-")])
    assert await collector.stop() == ""
    record.close("completed")
    found = [
        (call.caller, call.tool_call) for call in open_run(record.run_id, tmp_path).typed_calls()
    ]
    assert found == [
        *(("session", named) for named in ("two", "one", "one", "", "", "", "")),
        ("script-1", ""),
    ]


def tool(kind: str, key: str, name: str, time: float) -> dict[str, Any]:
    return {"type": kind, "id": key, "name": name, "time": time}


@pytest.fixture
def older(tmp_path: Path) -> RunRecord:
    """A record of an older version, whose calls do not name their tool calls."""
    record = RunRecord.create(tmp_path, "20260101-000000-aaaaaaaa", meta={})
    for event in (
        tool("tool_call", "cell", "python", 10.0),
        tool("tool_call", "one", "lab__grid", 11.0),
        tool("tool_call", "two", "mean", 12.0),
        tool("tool_result", "one", "lab__grid", 13.0),
        tool("tool_result", "two", "mean", 14.0),
        tool("tool_result", "cell", "python", 20.0),
        tool("tool_result", "unheard", "python", 20.0),
        tool("tool_call", "open", "python", 25.0),
    ):
        record.event(event)
    return record


def add_call(record: RunRecord, function: str, started: float, **more: Any) -> None:
    call = GateCall(interface="lab", caller="c", function=function, arguments="[]", time=started)
    line = call.to_json()
    del line["tool_call"]
    record.call({**line, **more})


@pytest.mark.parametrize(
    ("function", "started", "expected"),
    [
        ("grid", 9.0, ""),
        ("grid", 9.96, "cell"),
        ("grid", 12.5, "one"),
        ("other", 12.5, "two"),
        ("other", 15.0, "cell"),
        ("mean", 20.04, "cell"),
        ("mean", 22.0, ""),
        ("mean", 30.0, "open"),
    ],
)
def test_in_an_older_record_the_tool_call_of_its_name_or_the_last_one_is_chosen(
    older: RunRecord, function: str, started: float, expected: str
) -> None:
    add_call(older, function, started)
    run = Run(older.folder)
    run.verify()
    assert [line["tool_call"] for line in run.calls()] == [expected]
    assert [call.tool_call for call in run.typed_calls()] == [expected]
    assert [body["tool_call"] for _, body in run.lines("calls")] == [expected]


def test_what_a_record_says_counts_more_than_the_times(older: RunRecord) -> None:
    add_call(older, "grid", 12.5, tool_call="cell")
    add_call(older, "grid", 12.5, tool_call="")
    assert [line["tool_call"] for line in Run(older.folder).calls()] == ["cell", ""]


def test_an_older_record_that_grows_is_read_again(older: RunRecord) -> None:
    run = Run(older.folder)
    add_call(older, "other", 12.5)
    assert [line["tool_call"] for line in run.calls()] == ["two"]
    older.event(tool("tool_call", "late", "other", 12.4))
    assert [line["tool_call"] for line in run.calls()] == ["late"]
