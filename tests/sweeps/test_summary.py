"""Intervals and tables, compared with other libraries."""

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seer.errors import MissingExtraError
from seer.sweeps import Attempt, Matrix, SweepResult, summarize


def sweep_of(tmp_path: Path, scores: dict[str, list[float | None]], **values: list[Any]) -> Any:
    """A finished sweep over agents with these scores."""
    matrix = Matrix(agents=list(scores), seeds=len(next(iter(scores.values()))))
    attempts = [
        Attempt(
            cell_id=cell.id,
            number=1,
            outcome="failed" if scores[cell.agent or ""][cell.repetition] is None else "done",
            began=0.0,
            ended=2.0,
            score=scores[cell.agent or ""][cell.repetition],
            values={name: given[cell.repetition] for name, given in values.items()},
        )
        for cell in matrix.cells()
    ]
    return SweepResult(tmp_path, "main.py", matrix, tuple(attempts))


@pytest.mark.parametrize("scores", [[1.0, 0.0, 1.0, 1.0], [0.0] * 5, [1.0] * 3])
def test_intervals_of_rates_are_wilsons(tmp_path: Path, scores: list[float | None]) -> None:
    (group,) = summarize(sweep_of(tmp_path, {"a": scores})).groups
    proportion: Any = importlib.import_module("statsmodels.stats.proportion")
    low, high = proportion.proportion_confint(
        int(sum(s or 0 for s in scores)), len(scores), method="wilson"
    )
    assert group.method == "Wilson"
    assert (group.low, group.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_intervals_of_other_scores_are_the_bootstraps(tmp_path: Path) -> None:
    scores: list[float | None] = [0.1, 0.4, 0.35, 0.8, 0.75, 0.2, 0.6, 0.5]
    found = summarize(sweep_of(tmp_path, {"a": scores, "b": [s and s + 0.2 for s in scores]}))
    (first, second) = found.groups
    stats: Any = importlib.import_module("scipy.stats")
    numpy: Any = importlib.import_module("numpy")
    found_by_scipy = stats.bootstrap((scores,), numpy.mean, rng=0, n_resamples=9999)
    bounds = found_by_scipy.confidence_interval
    assert (first.method, first.n) == ("bootstrap", 8)
    assert (first.low, first.high) == pytest.approx((bounds.low, bounds.high))
    assert first.low < first.mean < first.high
    # Paired: a constant gain is certain, however much the scores themselves vary.
    (gain,) = found.differences
    assert (gain.better, gain.worse, gain.pairs) == ("b", "a", 8)
    assert gain.mean == pytest.approx(0.2)
    assert second.low < first.high  # without pairs, the difference would not be significant


def test_differences_over_several_models_take_the_model_as_the_unit(tmp_path: Path) -> None:
    # Seeds of one model say the same: twelve pairs that are four results.
    gains = {"m0": 1.0, "m1": 1.0, "m2": 1.0, "m3": -1.0}
    matrix = Matrix(tools=["none", "probes"], models=list(gains), seeds=3)
    attempts = tuple(
        Attempt(
            cell_id=cell.id, number=1, outcome="done", began=0.0, ended=1.0,
            score=float((cell.tools == "probes") == (gains[cell.model or ""] > 0)),
        )
        for cell in matrix.cells()
    )  # fmt: skip
    found = summarize(SweepResult(tmp_path, "main.py", matrix, attempts))
    (gain,) = [d for d in found.differences if d.axis == "tools"]
    stats: Any = importlib.import_module("scipy.stats")
    bounds = stats.ttest_1samp(list(gains.values()), 0).confidence_interval(0.95)
    assert (gain.better, gain.pairs, gain.mean) == ("probes", 12, 0.5)
    assert (gain.low, gain.high) == (pytest.approx(bounds.low), pytest.approx(bounds.high))
    assert gain.low < 0 and gain.method == "Student over models"


def test_what_has_no_score_is_missing_and_not_zero(tmp_path: Path) -> None:
    found = summarize(sweep_of(tmp_path, {"a": [1.0, None, 1.0], "b": [None, None, None]}))
    assert [(g.n, g.missing) for g in found.groups] == [(2, 1), (0, 3)]
    assert found.groups[0].mean == 1.0 and math.isnan(found.groups[1].mean)
    assert found.differences == ()


def test_a_score_reported_before_a_failure_is_no_result_in_table_and_summary(
    tmp_path: Path,
) -> None:
    sweep = sweep_of(tmp_path, {"a": [1.0, 1.0, 0.0]})
    first, *others = sweep.attempts
    sweep = replace(sweep, attempts=(replace(first, outcome="failed"), *others))
    assert [row["score"] for row in sweep.rows()] == [None, 1.0, 0.0]
    (group,) = summarize(sweep).groups
    assert (group.n, group.missing, group.mean) == (2, 1, 0.5)


def test_a_row_has_the_whole_message_of_the_exception_that_ended_the_cell(
    tmp_path: Path,
) -> None:
    sweep = sweep_of(tmp_path, {"a": [None]})
    stack = 'Traceback (most recent call last):\n  File "main.py", line 1, in <module>\n    look()'
    for output, shown in (
        (f"a line\n{stack}\nValueError: first\n  second", "ValueError: first second"),
        (f"{stack}\nKeyError\n\nDuring handling:\n\n{stack}\nlab.Gone: x", "lab.Gone: x"),
        ("a line\nthe experiment is wrong", "the experiment is wrong"),
    ):
        failed = replace(sweep.attempts[0], error=f"exit code 1\n{output}")
        (row,) = replace(sweep, attempts=(failed,)).rows()
        assert row["error"] == shown


def test_tables_hold_whatever_was_reported(tmp_path: Path) -> None:
    sweep = sweep_of(
        tmp_path, {"a": [1.0, 0.5]}, note=["fine", 3], found=[["x"], []], plain=[1, None]
    )
    parquet: Any = importlib.import_module("pyarrow.parquet")
    table = parquet.read_table(sweep.to_parquet(tmp_path / "t.parquet")).to_pydict()
    assert table["score"] == [1.0, 0.5]
    assert table["value.note"] == ['"fine"', "3"]  # of two kinds: as JSON
    assert table["value.found"] == [["x"], []]
    assert table["value.plain"] == [1, None]
    lines = sweep.to_csv(tmp_path / "t.csv").read_text().splitlines()
    assert len(lines) == 3 and "value.found" in lines[0]


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of(tmp_path, {"a": [1.0]})
    for name in ("pyarrow", "scipy.special", "scipy.stats"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"seer-interp\[sweeps\]"):
        sweep.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(MissingExtraError, match=r"seer-interp\[sweeps\]"):
        summarize(sweep)
