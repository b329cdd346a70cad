"""Two runs are the same if they say and do the same, and their code made the same gate calls."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seer.cli import main
from seer.runs import Comparison, GateCall, Run, RunInfo, RunRecord, compare_runs, open_run

_numbers = itertools.count()


def call(function: str, *args: Any, at: float, run: float = 0.1, **more: Any) -> GateCall:
    text = json.dumps({"result": f"{function}{args}"})
    given: dict[str, Any] = {
        "interface": "tools",
        "caller": "lab-1",
        "function": function,
        "arguments": json.dumps([list(args), {}]),
        "result": text,
        "result_digest": f"digest of {text}",
        "time": at + run,
        "run": run,
        **more,
    }
    return GateCall(**given)


def record(
    root: Path,
    calls: Sequence[GateCall] = (),
    events: Sequence[dict[str, Any]] = (),
    **info: Any,
) -> Run:
    name = f"20260101-000000-{next(_numbers):08x}"
    made = RunRecord.create(root, name, meta=RunInfo(task="look", **info))
    for item in calls:
        made.call(item.to_json())
    for event in events:
        made.event(event)
    made.close("completed")
    return open_run(name, root)


def shown(comparison: Comparison) -> list[str | None]:
    found = comparison.call
    assert found is not None
    return [None if step is None else step.fields["call"] for step in (found.left, found.right)]


def test_runs_whose_calls_differ_are_not_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    five = record(tmp_path, [call("plus", n, at=n) for n in range(5)])
    one = record(tmp_path, [call("plus", 0, at=7)])
    other = record(
        tmp_path, [call("plus", 9, at=7), *(call("plus", n, at=n) for n in range(9, 13))]
    )
    failed = record(tmp_path, [call("plus", 0, at=7, outcome="GateBusyError")])
    result = record(tmp_path, [call("plus", 0, at=7, result_digest="another")])
    assert shown(compare_runs(five, one)) == ["plus(1)", None]
    assert shown(compare_runs(one, five)) == [None, "plus(1)"]
    assert shown(compare_runs(five, other)) == ["plus(0)", "plus(9)"]
    assert shown(compare_runs(one, failed)) == ["plus(0)", "plus(0)"]
    assert shown(compare_runs(one, result)) == ["plus(0)", "plus(0)"]
    assert not compare_runs(five, one).equal
    assert main(["runs", "diff", five.run_id, one.run_id, "--runs", str(tmp_path)]) == 3
    said = capsys.readouterr().out
    assert "1 call is the same, then:" in said
    assert '< call 1: {\n<   "call": "plus(1)",' in said
    assert "> (no more calls)" in said


def test_calls_are_compared_without_times_ids_and_generated_names(tmp_path: Path) -> None:
    first = record(
        tmp_path,
        [
            call("plus", 1, at=1, caller="script-1", call="4431bf812c85-1"),
            call("plus", 2, at=2, caller="local-aa11bb-2", tool_call="c1"),
        ],
        callers={"tools": "local-aa11bb-2"},
    )
    again = record(
        tmp_path,
        [
            call("plus", 2, at=70, run=3, caller="local-ee33ff-1", tool_call="c7"),
            call("plus", 1, at=50, caller="script-9", call="05dd0e233107-1"),
        ],
        callers={"tools": "local-ee33ff-1"},
    )
    assert compare_runs(first, again).equal


def test_handles_are_compared_without_their_random_ids(tmp_path: Path) -> None:
    def run(handle: str, rows: int, more: str = "") -> Run:
        reference = {"$seer": "handle", "id": handle}
        kept = json.dumps({"result": {**reference, "type": "list", "shape": [rows]}})
        given = json.dumps([[reference], {"note": more}])
        calls = [
            call("keep", at=1, result=kept, result_digest=f"of {kept}"),
            call("add", at=2, arguments=given),
            call("handle.fetch", at=3, handle=handle),
        ]
        return record(tmp_path, calls)

    long = "x" * 10_000
    assert compare_runs(run("4f1e09", 3), run("7c2a31", 3)).equal
    assert compare_runs(run("4f1e09", 3, long), run("7c2a31", 3, long)).equal
    assert shown(compare_runs(run("4f1e09", 3), run("7c2a31", 4))) == ["keep()", "keep()"]


@pytest.mark.parametrize(
    ("now", "equal"),
    [
        ("fe98dc76ba54-1, fe98dc76ba54-2 and 98badcfe7654-1", True),
        ("4431bf812c85-1, 4431bf812c85-2 and 05dd0e233107-1", True),
        ("fe98dc76ba54-1, fe98dc76ba54-1 and 98badcfe7654-1", False),
        ("fe98dc76ba54-2, fe98dc76ba54-1 and 98badcfe7654-1", False),
        ("fe98dc76ba54-1, 98badcfe7654-2 and 98badcfe7654-1", False),
        ("fe98dc76ba54-1, fe98dc76ba54-2 and fe98dc76ba54-1", False),
        ("fe98dc76ba54-1, fe98dc76ba54-2 or 98badcfe7654-1", False),
    ],
)
def test_an_id_of_a_call_is_compared_by_the_call_that_has_it(
    tmp_path: Path, now: str, equal: bool
) -> None:
    ids = ("4431bf812c85-1", "4431bf812c85-2", "05dd0e233107-1")
    calls = [call("plus", n, at=n, call=name) for n, name in enumerate(ids)]
    before = "4431bf812c85-1, 4431bf812c85-2 and 05dd0e233107-1"

    def said(text: str) -> list[dict[str, Any]]:
        content = [{"type": "text", "text": text}]
        result = {"type": "tool_result", "id": "1", "name": "python", "content": content}
        return [result, {"type": "text", "text": f"I cite {text}"}]

    for kind in (0, 1):
        left = record(tmp_path, calls, said(before)[kind:])
        right = record(tmp_path, calls, said(now)[kind:])
        assert compare_runs(left, right).equal == equal
        other = record(tmp_path, (), said(before)[kind:])
        without = record(tmp_path, (), said(now)[kind:])
        assert compare_runs(other, without).equal == (now == before), "no call has such an id"


def test_only_calls_that_overlapped_may_come_in_another_order(tmp_path: Path) -> None:
    at_once = record(tmp_path, [call("plus", 1, at=1, run=2), call("plus", 2, at=2, run=2)])
    in_turn = record(tmp_path, [call("plus", 1, at=1), call("plus", 2, at=2)])
    reverse = record(tmp_path, [call("plus", 2, at=1), call("plus", 1, at=2)])
    assert compare_runs(at_once, reverse).equal
    alike = [call("plus", 1, at=0, run=10), call("plus", 1, at=1, run=1), call("plus", 2, at=3)]
    threads = record(tmp_path, alike)
    assert compare_runs(threads, threads).equal
    assert shown(compare_runs(in_turn, reverse)) == ["plus(1)", "plus(2)"]


def test_a_call_that_was_lost_is_compared_by_what_is_known_of_it(tmp_path: Path) -> None:
    def lost(function: str, **more: Any) -> Run:
        made = call(function, 1, at=1, outcome="CallLostError", result_digest="", **more)
        return record(tmp_path, [made])

    known, unknown = lost("plus"), lost("plus", arguments=None)
    other = lost("minus", arguments=None)
    assert compare_runs(known, unknown).equal
    assert shown(compare_runs(known, other)) == ["plus(1)", "minus(...)"]


def test_calls_are_compared_without_reading_their_large_values(tmp_path: Path) -> None:
    runs = [record(tmp_path, [call("plus", "x" * 10_000, at=1)]) for _ in range(2)]
    for run in runs:
        for path in (run.folder / "blobs").rglob("*"):
            if path.is_file():
                path.unlink()
    assert compare_runs(*runs).equal


def test_a_replay_on_a_machine_that_runs_nothing_lacks_the_calls_of_its_session(
    tmp_path: Path,
) -> None:
    calls = [call("plus", 1, at=1, caller="cli-aa11bb-2"), call("plus", 2, at=2, caller="tools-1")]
    recorded = record(tmp_path, calls, callers={"tools": "cli-aa11bb-2"})
    again = record(
        tmp_path,
        calls[1:],
        callers={"tools": "cli-ee33ff-2"},
        jail={"kind": "cli", "machine": {"provider": "replay", "id": "replay-1"}},
    )
    ran = record(
        tmp_path,
        calls[1:],
        callers={"tools": "cli-ee33ff-2"},
        jail={"kind": "cli", "machine": {"provider": "local", "id": "sb-1"}},
    )
    assert compare_runs(recorded, again, replayed=True).equal
    assert shown(compare_runs(recorded, again)) == ["plus(1)", None]
    assert shown(compare_runs(recorded, ran, replayed=True)) == ["plus(1)", None]


def test_the_runs_of_a_replay_are_compared_without_the_calls_of_scripts(tmp_path: Path) -> None:
    own = call("plus", 1, at=1, caller="local-aa11bb-2")
    script = call("plus", 2, at=2, caller="tools-in-a-script-1")
    recorded = record(tmp_path, [own, script])
    again = record(tmp_path, [own])
    other = record(tmp_path, [call("plus", 9, at=1, caller="local-aa11bb-2"), script])
    assert compare_runs(recorded, again, replayed=True).equal
    assert compare_runs(again, recorded, replayed=True).equal
    assert shown(compare_runs(recorded, again)) == ["plus(2)", None]
    assert shown(compare_runs(recorded, other, replayed=True)) == ["plus(1)", "plus(9)"]


@pytest.mark.parametrize(
    "text", ["ids:\n{}\t{}", "é{}é", "{}é", "id_{}", "r'\\n{}\\n'", '{{"a": "\\t{}"}}', "n{}s"]
)
def test_an_id_of_a_call_is_found_next_to_any_other_text(tmp_path: Path, text: str) -> None:
    def run(ids: tuple[str, str], said: tuple[str, str]) -> Run:
        calls = [call("plus", n, at=n, call=name) for n, name in enumerate(ids)]
        content = [{"type": "text", "text": text.format(*said)}]
        result = {"type": "tool_result", "id": "1", "name": "python", "content": content}
        asked = {"type": "tool_call", "id": "1", "name": "python"}
        arguments = {"code": text.format(*said), text.format(*said): ["\n" + said[0]]}
        return record(tmp_path, calls, [{**asked, "arguments": arguments}, result])

    before = ("4431bf812c85-1", "4431bf812c85-12")
    now = ("fe98dc76ba54-1", "fe98dc76ba54-12")
    left = run(before, before)
    assert compare_runs(left, run(now, now)).equal
    assert not compare_runs(left, run(now, (now[1], now[1]))).equal
    assert not compare_runs(left, run(now, ("fe98dc76ba54-10", now[1]))).equal


def test_results_without_a_digest_are_compared_by_their_texts(tmp_path: Path) -> None:
    def refused(message: str, **more: Any) -> Run:
        text = json.dumps({"error": {"type": "BudgetExceededError", "message": message}})
        given: dict[str, Any] = {
            "outcome": "BudgetExceededError",
            "result": text,
            "result_digest": "",
            **more,
        }
        return record(tmp_path, [call("plus", 1, at=1, **given)])

    def answered(value: int, digest: str) -> Run:
        text = json.dumps({"result": value})
        return record(tmp_path, [call("plus", 1, at=1, result=text, result_digest=digest)])

    used, closed = "2 calls were allowed", "the study is over"
    assert compare_runs(refused(used), refused(used)).equal
    assert shown(compare_runs(refused(used), refused(closed))) == ["plus(1)", "plus(1)"]
    unread = {"arguments": None}
    assert not compare_runs(refused(used, **unread), refused(closed, **unread)).equal
    assert compare_runs(answered(1, ""), answered(1, "a digest")).equal
    assert shown(compare_runs(answered(1, ""), answered(2, "a digest"))) == ["plus(1)", "plus(1)"]
    assert shown(compare_runs(answered(1, "a digest"), answered(2, ""))) == ["plus(1)", "plus(1)"]


def test_calls_of_two_interfaces_of_one_name_are_compared_apart(tmp_path: Path) -> None:
    def run(*served: tuple[int, int]) -> Run:
        calls = [call("plus", n, at=n, caller=f"tools-{n}", served=number) for number, n in served]
        known = {
            f"tools#{number}": {"name": "tools", "served": number}
            for number in {number for number, _ in served}
        }
        return record(tmp_path, calls, interfaces=known)

    assert compare_runs(run((1, 1), (2, 2)), run((3, 1), (7, 2))).equal
    assert compare_runs(run((1, 1), (2, 2)), run((0, 1), (0, 2))).equal, "an older record"
    swapped = compare_runs(run((1, 1), (2, 2)), run((1, 2), (2, 1)))
    assert shown(swapped) == ["plus(1)", "plus(2)"]


def test_an_interface_without_calls_keeps_its_place(tmp_path: Path) -> None:
    known = {f"tools#{n}": {"name": "tools", "served": n} for n in (4, 5)}
    both = record(
        tmp_path,
        [call("plus", 1, at=1, served=4), call("plus", 2, at=2, served=5)],
        interfaces=known,
    )
    last = record(tmp_path, [call("plus", 2, at=2, served=5)], interfaces=known)
    assert shown(compare_runs(both, last)) == ["plus(1)", None]
