"""Whether the gate's speed meets its targets is decided correctly."""

import pytest

from benchmarks.gate._bars import Verdict, judge
from benchmarks.gate._results import Results, Row


def _row(kind: str, *, validates: bool = False, **values: float) -> Row:
    assert kind in ("ours", "peer", "floor")
    row = Row(kind, kind, validates, "")
    for work, value in values.items():
        row.add(work, value)
    return row


def _results() -> Results:
    return {
        "ours": _row(
            "ours",
            small=120,
            fan=20_000,
            floats=700,
            take=700,
            drop=14,
            keep=60,
            start=90,
            small_turns=100,
            fail_turns=290,
            fan_turns=21_000,
        ),
        "ours_recorded": _row("ours", small_turns=109),
        "ours_mcp": _row("ours", small=2_000),
        "least": _row("floor", small=90),
        "loop": _row("floor", fan=25_000, fan_turns=26_000),
        "memcpy": _row("floor", drop=12),
        "python": _row("floor", start=18),
        "jail": _row("floor", start=6),
        "plain": _row("peer", small=1_300, fan=900),
        "grpc": _row(
            "peer", validates=True, small=500, fan=2_000, floats=800, take=800, drop=400, keep=400
        ),
        "zeromq": _row("peer", small=125, fan=24_000, fan_turns=26_000, floats=300, drop=80),
        "pyro": _row("peer", small=170, fan=9_000, drop=500),
        "ray": _row("peer", small=1_000, fan=2_000, drop=18, keep=65),
        "mcp": _row("peer", validates=True, small=1_900, fan=400, floats=90_000, take=3_000),
    }


def _find(verdicts: list[Verdict], work: str, text: str) -> Verdict:
    return next(one for one in verdicts if one.work == work and text in one.text)


def test_all_bars_are_met_by_results_that_meet_them() -> None:
    missed = [verdict for verdict in judge(_results()) if not verdict.met]
    assert missed == []


@pytest.mark.parametrize(
    ("name", "work", "value", "text"),
    [
        ("ours", "small", 136, "same least work"),
        ("ours", "small", 131, "plain design"),
        ("zeromq", "small", 119, "peer"),
        ("zeromq", "fan_turns", 26_300, "ZeroMQ"),
        ("ours", "fan", 7_900, "gRPC"),
        ("pyro", "fan", 20_001, "peer"),
        ("ours", "floats", 801, "peer"),
        ("ours", "take", 801, "peer"),
        ("ours", "drop", 18.1, "memcpy"),
        ("ours", "keep", 60.1, "memcpy"),
        ("pyro", "drop", 69, "5×"),
        ("ray", "drop", 13, "peer"),
        ("ray", "keep", 59, "peer"),
        ("ours_mcp", "small", 2_480, "mcp stdio"),
        ("ours_recorded", "small_turns", 111, "recording"),
        ("ours", "fail_turns", 301, "small call"),
        ("ours", "start", 121, "bare jail"),
    ],
)
def test_a_value_past_a_bar_fails_that_bar(name: str, work: str, value: float, text: str) -> None:
    results = _results()
    results[name].values[work] = [value]
    bar = {"ours_mcp": "mcp", "ours_recorded": "small"}.get(name, work)
    bar = bar.removesuffix("_turns")
    assert any(text in one.text and not one.met for one in judge(results) if one.work == bar)


def test_a_peer_that_does_not_validate_is_no_bar_for_lists_of_floats() -> None:
    results = _results()
    results["ours"].values["floats"] = [790.0]
    assert all(verdict.met for verdict in judge(results) if verdict.work == "floats")


def test_two_that_were_measured_in_turns_are_compared_by_those() -> None:
    results = _results()
    results["pyro"].values["fan_turns"] = [22_000.0]
    verdict = _find(judge(results), "fan", "peer, in turns")
    assert verdict.ratio == pytest.approx(22_000 / 21_000)
    assert not verdict.met


def test_turns_are_compared_pair_by_pair() -> None:
    results = _results()
    results["ours"].values["small_turns"] = [40.0, 80.0, 30.0]
    results["ours_recorded"].values["small_turns"] = [42.0, 84.0, 60.0]
    verdict = _find(judge(results), "small", "recording")
    assert verdict.ratio == pytest.approx(1.05)


def test_what_was_not_measured_is_not_met() -> None:
    results = _results()
    del results["ours"].values["drop"]
    verdict = _find(judge(results), "drop", "memcpy")
    assert verdict.ratio is None
    assert not verdict.met
    assert verdict.missing == "not measured"


def test_a_value_is_the_median_of_its_rounds() -> None:
    results = _results()
    results["ours"].values["small"] = [80.0, 120.0, 9_000.0]
    assert _find(judge(results), "small", "same least work").ratio == pytest.approx(120 / 90)
