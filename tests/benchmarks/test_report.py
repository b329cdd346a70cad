"""The result page."""

import json
from pathlib import Path

from benchmarks._common import header, machine, table, write_results
from benchmarks.gate._measure import Plan
from benchmarks.gate._report import Context, data, page
from benchmarks.gate._results import Results, Row


def _results() -> Results:
    ours = Row("Seer", "ours", True, "called from a jail")
    ours.add("small", 104.0, 201.0)
    ours.add("small", 106.0, 203.0)
    ours.add("drop", 14_000.0)
    ours.add("drop_read", 24_000.0)
    plain = Row("plain design", "peer", False, "")
    plain.add("small", 1_300.0, 2_000.0)
    plain.gaps["drop"] = "JSON only"
    memcpy = Row("one memcpy", "floor", False, "")
    memcpy.add("drop", 12_000.0)
    return {"plain": plain, "memcpy": memcpy, "ours": ours}


_CONTEXT = Context(
    where={"cores": "2"}, packages={"grpcio": "1.0"}, plan=Plan(rounds=2), calm="calm"
)


def test_page_shows_medians_in_each_columns_unit() -> None:
    text = page(_results(), _CONTEXT)
    row = next(line for line in text.splitlines() if line.startswith("| Seer |"))
    assert "105 (202)" in row
    assert "| 14.0 |" in row
    assert "Medians of 2 interleaved rounds" in text
    assert "grpcio 1.0" in text


def test_page_puts_ours_first_then_floors_then_peers() -> None:
    lines = page(_results(), _CONTEXT).splitlines()
    places = [
        next(i for i, line in enumerate(lines) if line.startswith(f"| {title} |"))
        for title in ("Seer", "one memcpy", "plain design")
    ]
    assert places == sorted(places)


def test_a_missing_cell_says_why() -> None:
    text = page(_results(), _CONTEXT)
    row = next(line for line in text.splitlines() if line.startswith("| plain design |"))
    assert "n/a" in row
    assert "plain design, n/a in drop: JSON only" in text


def test_page_says_what_recording_costs_on_average() -> None:
    results = _results()
    assert "On average, a recorded small call" not in page(results, _CONTEXT)
    results["ours_recorded"] = Row("Seer, recording", "ours", True, "")
    results["ours"].values["small_turns_mean"] = [20.0, 40.0]
    results["ours_recorded"].values["small_turns_mean"] = [30.0, 60.0]
    text = page(results, _CONTEXT)
    assert "On average, a recorded small call takes 1.50 times a plain one" in text


def test_data_holds_every_round_and_the_verdicts() -> None:
    found = json.loads(json.dumps(data(_results(), _CONTEXT)))
    assert found["contestants"]["ours"]["rounds"]["small"] == [104.0, 106.0]
    assert found["contestants"]["ours"]["medians"]["small"] == 105.0
    assert {bar["bar"] for bar in found["bars"] if bar["met"]} >= {"≤ 1.5× one memcpy"}


def test_results_are_written_side_by_side(tmp_path: Path) -> None:
    write_results("x", "# X\n\n", {"b": 1, "a": 2}, folder=tmp_path / "new")
    assert (tmp_path / "new" / "x.md").read_text() == "# X\n"
    assert json.loads((tmp_path / "new" / "x.json").read_text()) == {"a": 2, "b": 1}


def test_header_names_the_hardware_and_nothing_private() -> None:
    text = header("T", {}, machine())
    assert "processor:" in text
    assert "cores:" in text
    assert str(Path.home()) not in text


def test_table_has_one_separator_per_column() -> None:
    assert table(["a", "b"], [["1", "2"]]).splitlines()[1] == "|---|---:|"
