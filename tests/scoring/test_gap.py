"""A gap is estimated in pairs and by organism; scipy, statsmodels and simulations judge it."""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.campaign_gap import WORLDS, Run, claims, clustered, pooled, worlds
from seer.scoring import Gap, GapRow, gap_table, plot_gap, rate, tool_gap

stats: Any = importlib.import_module("scipy.stats")
tables: Any = importlib.import_module("statsmodels.stats.contingency_tables")
multiple: Any = importlib.import_module("statsmodels.stats.multitest")
proportions: Any = importlib.import_module("statsmodels.stats.proportion")


def runs(
    tools: str, results: Mapping[str, Sequence[bool | None]], *, agent: str = "a"
) -> list[Run]:
    return [
        Run(agent, tools, name, seed, name.endswith("-control"), correct)
        for name, row in results.items()
        for seed, correct in enumerate(row)
    ]


def rows_of(found: list[Run]) -> dict[tuple[str, str], GapRow]:
    return {(r.agent, r.tools): r for r in tool_gap(found, "black")}


def gap_of(
    white: Mapping[str, Sequence[bool | None]], black: Mapping[str, Sequence[bool | None]]
) -> Gap:
    gap = rows_of(runs("white", white) + runs("black", black))["a", "white"].sensitivity_gap
    assert gap is not None
    return gap


def test_pairs_are_tested_by_the_exact_mcnemar_test() -> None:
    # Six of twelve pairs differ, all in the same direction.
    white = {"x": [True] * 6, "y": [True] * 3 + [False] * 3}
    black = {"x": [True] * 3 + [False] * 3, "y": [False] * 6}
    gap = gap_of(white, black)
    assert gap.pairs == 12 and gap.organisms == 2
    assert gap.p_pairs == pytest.approx(0.03125)
    assert gap.p_pairs == pytest.approx(stats.binomtest(6, 6).pvalue)
    assert gap.p_pairs == pytest.approx(tables.mcnemar([[3, 6], [0, 3]], exact=True).pvalue)


def test_the_interval_is_students_over_organisms_where_they_vary() -> None:
    white = {"w": [True] * 6, "x": [True] * 5 + [False], "y": [False] * 6, "z": [True] * 6}
    black = {"w": [False] * 6, "x": [True] * 6, "y": [True] * 4 + [False] * 2, "z": [False] * 6}
    gap = gap_of(white, black)
    means = [1.0, -1 / 6, -4 / 6, 1.0]
    expected = stats.ttest_1samp(means, 0)
    bounds = expected.confidence_interval(0.95)
    assert gap.value == pytest.approx(float(np.mean(means)))
    assert (gap.low, gap.high) == (
        pytest.approx(max(-1.0, bounds.low)),
        pytest.approx(min(1.0, bounds.high)),
    )
    assert gap.p == pytest.approx(expected.pvalue)


def test_organisms_that_agree_exactly_do_not_make_the_gap_certain() -> None:
    every = {name: [True] * 3 for name in "wxyz"}
    gap = gap_of(every, {name: [False] * 3 for name in "wxyz"})
    # Bonett and Price: one more differing pair in each direction, and fewer pairs for few
    # organisms.
    pairs = 12 * (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 3)) ** 2
    n = pairs + 2
    p, q = (pairs + 1) / n, 1 / n
    reach = stats.norm.ppf(0.975) * math.sqrt((p + q - (p - q) ** 2) / n)
    assert (gap.value, gap.high) == (1, 1) and gap.low == pytest.approx(1 - reach)
    same = gap_of(every, every)
    assert same.value == 0 and same.low < -0.1 and same.high > 0.1 and same.p == same.p_pairs == 1


def test_an_organism_that_was_run_more_often_reverses_nothing() -> None:
    # Better on each of the two, and worse when the runs are pooled: only pairs count, and each
    # organism as much as any other.
    white = {"easy": [True] * 2, "hard": [True] * 3 + [False] * 7}
    black = {"easy": [True] * 9 + [False], "hard": [False] * 2}
    pooled_gap = 5 / 12 - 9 / 12
    gap = gap_of({**white, "easy": [True] * 2}, {**black, "easy": [False, *[True] * 9]})
    assert pooled_gap < 0 < gap.value
    assert gap.value == pytest.approx((1 / 2 + 2 / 2) / 2) and gap.pairs == 4


def test_finding_and_clearing_are_told_apart() -> None:
    found: list[Run] = []
    for tools, says in (("black", False), ("white", True)):
        # One tool set never reports anything; the other one always does.
        organisms = {name: [says] * 3 for name in ("x", "y")}
        controls = {f"{name}-control": [not says] * 3 for name in ("x", "y")}
        found += runs(tools, {**organisms, **controls})
    rows = rows_of(found)
    nothing, always = rows["a", "black"], rows["a", "white"]
    assert nothing.sensitivity and nothing.sensitivity.value == 0
    assert nothing.specificity and nothing.specificity.value == 1
    assert always.sensitivity_gap and always.sensitivity_gap.value == 1
    assert always.specificity_gap and always.specificity_gap.value == -1
    only = rows_of(runs("black", {"x": [True] * 3}))["a", "black"]
    assert only.specificity is None and only.sensitivity


def test_a_run_without_a_result_is_missing_and_so_is_its_pair() -> None:
    white = {"x": [True, None, True], "y": [True, True, True]}
    rows = rows_of(
        runs("white", white) + runs("black", {"x": [False] * 3, "y": [False, None, True]})
    )
    row = rows["a", "white"]
    assert row.missing == 1 and row.sensitivity and row.sensitivity.n == 5
    assert row.sensitivity.value == 1  # of what ended
    assert row.sensitivity_gap and row.sensitivity_gap.pairs == 4
    assert row.sensitivity_gap.value == pytest.approx((1 + 1 / 2) / 2)
    none = rows_of(runs("white", {"x": [None]}) + runs("black", {"x": [True]}))["a", "white"]
    assert none.sensitivity is None and none.sensitivity_gap is None and none.missing == 1


def test_all_comparisons_of_a_table_are_corrected_together() -> None:
    black = {name: [False] * 6 for name in "wxyz"}
    raw: dict[str, float] = {}
    found = runs("black", black)
    for count in (1, 2, 3, 4):
        white = {name: [True] * (6 if i < count else 1) + [False] * (0 if i < count else 5)
                 for i, name in enumerate("wxyz")}  # fmt: skip
        raw[f"t{count}"] = gap_of(white, black).p_pairs
        found += runs(f"t{count}", white)
    rows = rows_of(found)
    assert len(set(raw.values())) > 1
    expected = multiple.multipletests([*raw.values()], method="holm")[1]
    for name, p in zip(raw, expected, strict=True):
        gap = rows["a", name].sensitivity_gap
        assert gap and gap.p_pairs == pytest.approx(p)


def test_each_agent_is_compared_with_itself(tmp_path: Path) -> None:
    every = {"x": [True] * 4, "y": [True] * 4, "x-control": [True] * 4}
    found = runs("white", every) + runs("black", {name: [False] * 4 for name in every})
    found += runs("white", {"x": [True] * 4}, agent="b")
    rows = rows_of(found)
    assert rows["a", "white"].sensitivity_gap and rows["a", "white"].specificity_gap
    assert rows["a", "black"].sensitivity_gap is None
    assert rows["b", "white"].sensitivity_gap is None
    table = gap_table(list(rows.values()))
    assert "| a | black | 0.00 [" in table and "| - | - | 0 |" in table and "+1.00 [" in table
    plot_gap(list(rows.values()), tmp_path / "gap.png")
    assert (tmp_path / "gap.png").read_bytes().startswith(b"\x89PNG")


def test_one_organism_says_nothing_about_others() -> None:
    gap = gap_of({"x": [True] * 8}, {"x": [False] * 8})
    assert gap.value == 1 and math.isnan(gap.low) and math.isnan(gap.p)
    assert gap.p_pairs == pytest.approx(2 / 2**8)
    assert "1 organism" in gap_table(tool_gap(
        runs("white", {"x": [True]}) + runs("black", {"x": [False]}), "black"))  # fmt: skip


def test_two_runs_that_cannot_be_told_apart_are_refused() -> None:
    (run,) = runs("white", {"x": [True]})
    with pytest.raises(ValueError, match=r"two runs.*'x'.*seed 0"):
        tool_gap([run, replace(run, correct=False)], "white")


def test_a_short_name_and_its_instance_are_one_organism() -> None:
    short = {"trigger": [True] * 2, "trigger-control": [False] * 2, "secret-1": [True] * 2}
    full = {"trigger-2": [False] * 2, "trigger-2-control": [True] * 2, "secret-1": [False] * 2}
    row = rows_of(runs("white", short) + runs("black", full))["a", "white"]
    assert row.sensitivity_gap and row.sensitivity_gap.organisms == 2
    assert row.sensitivity_gap.pairs == 4
    assert row.specificity_gap and row.specificity_gap.organisms == 1
    with pytest.raises(ValueError, match=r"two runs.*'trigger-2'.*seed 0"):
        tool_gap(runs("white", {"trigger": [True], "trigger-2": [True]}), "white")


def test_a_small_p_is_not_printed_as_zero() -> None:
    every = {name: [True] * 20 for name in "wxyz"}
    rows = tool_gap(runs("white", every) + runs("black", {n: [False] * 20 for n in every}), "black")
    table = gap_table(rows)
    assert "p < 0.001" in table and "pairs p < 0.001" in table and "0.000" not in table
    one = tool_gap(runs("white", {"x": [True] * 20}) + runs("black", {"x": [False] * 20}), "black")
    assert "pairs p < 0.001)" in gap_table(one)


def test_a_rate_over_organisms_counts_what_runs_on_one_share() -> None:
    groups = [name for name in "wxyz" for _ in range(3)]
    alike = [name in "wx" for name in groups]
    one, many = rate(alike, groups), rate(alike)
    assert one.value == many.value == 0.5 and one.n == 12
    # Twelve runs that agree within organisms are four: Korn and Graubard's effective number.
    between = np.var([1.0, 1.0, 0.0, 0.0], ddof=1) / 4
    shrunk = 0.25 / between * (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 3)) ** 2
    low, high = proportions.proportion_confint(shrunk / 2, shrunk, method="wilson")
    assert (one.low, one.high) == (pytest.approx(low), pytest.approx(high))
    assert one.low < many.low and one.high > many.high


@pytest.mark.parametrize("name", WORLDS)
def test_intervals_miss_the_true_gap_no_more_often_than_they_promise(name: str) -> None:
    gap, drawn = WORLDS[name].gap, list(worlds(WORLDS[name], 300))
    missed = sum(clustered(found, gap) for found in drawn)
    assert stats.binomtest(missed, len(drawn), 0.05, alternative="greater").pvalue > 0.001
    if name == "the same, seeds hardly differ":
        # The error of pooling on the same runs.
        assert sum(pooled(found, gap) for found in drawn) > 0.2 * len(drawn)


def test_of_six_null_tool_sets_none_is_called_different_too_often() -> None:
    drawn = [claims(r) for r in worlds(WORLDS["a tool suits an organism or not"], 150, sets=6)]
    plain, corrected = (sum(column) for column in zip(*drawn, strict=True))
    assert stats.binomtest(corrected, len(drawn), 0.05, alternative="greater").pvalue > 0.001
    assert corrected <= plain
