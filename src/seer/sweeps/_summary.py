"""The statistics of a sweep: means with intervals, paired differences, and a plot of the means.

The intervals are Wilson's for scores that are all 0 or 1, and the bootstrap (BCa) for others.
A difference over several models takes the mean of each model as one result (Student's interval).
"""

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from seer._statistics import bootstrap, group_means, science, student, wilson
from seer.sweeps._results import SweepResult

_AXES = ("agent", "tools", "model")
_HUES = (245, 160, 25, 330, 200, 95, 280, 50)
_TEXT, _MUTED, _GRID = "#1a1b22", "#747686", "#e3e3ec"


@dataclass(frozen=True, kw_only=True)
class Group:
    """All repetitions of one combination."""

    agent: str | None
    tools: str | None
    model: str | None
    n: int
    """The number of cells with a score."""
    missing: int
    """The number of cells without a score, because they were not run or failed."""
    mean: float
    low: float
    high: float
    """95 % interval of the mean."""
    method: str

    @property
    def label(self) -> str:
        """The name in tables and plots."""
        return " / ".join(part for part in (self.agent, self.tools, self.model) if part) or "all"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference between two values of an axis, over pairs of otherwise equal cells."""

    axis: str
    better: str
    worse: str
    """The two values; the difference is `better` minus `worse`."""
    pairs: int
    mean: float
    low: float
    high: float
    method: str


@dataclass(frozen=True)
class Summary:
    """The groups and their differences."""

    groups: tuple[Group, ...]
    differences: tuple[Difference, ...]


def summarize(sweep: SweepResult) -> Summary:
    """Compute means and paired differences of a sweep's scores.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    rows = sweep.rows()
    keys = list(dict.fromkeys(tuple(row[axis] for axis in _AXES) for row in rows))
    groups: list[Group] = []
    for key in keys:
        mine = [row for row in rows if tuple(row[axis] for axis in _AXES) == key]
        scores = [float(row["score"]) for row in mine if row["score"] is not None]
        mean, low, high, method = interval(scores)
        groups.append(
            Group(
                agent=key[0],
                tools=key[1],
                model=key[2],
                n=len(scores),
                missing=len(mine) - len(scores),
                mean=mean,
                low=low,
                high=high,
                method=method,
            )
        )
    differences = [found for axis in _AXES for found in _differences(rows, axis)]
    return Summary(tuple(groups), tuple(differences))


def _differences(rows: list[dict[str, Any]], axis: str) -> list[Difference]:
    values = list(dict.fromkeys(row[axis] for row in rows if row[axis] is not None))
    found: list[Difference] = []
    for first, second in combinations(values, 2):
        paired = _pairs(rows, axis, first, second)
        if not paired:
            continue
        mean, low, high, method = _of_pairs(paired)
        if mean < 0:
            first, second, mean, low, high = second, first, -mean, -high, -low
        found.append(
            Difference(
                axis=axis,
                better=first,
                worse=second,
                pairs=len(paired),
                mean=mean,
                low=low,
                high=high,
                method=method,
            )
        )
    return found


def _pairs(
    rows: list[dict[str, Any]], axis: str, first: str, second: str
) -> list[tuple[str | None, float]]:
    """The differences between otherwise equal cells, each with its model (unless that differs)."""
    others = [*(name for name in _AXES if name != axis), "repetition"]
    scores = {
        (row[axis], *(row[name] for name in others)): float(row["score"])
        for row in rows
        if row["score"] is not None
    }
    return [
        (
            None if axis == "model" else key[others.index("model") + 1],
            score - scores[second, *key[1:]],
        )
        for key, score in scores.items()
        if key[0] == first and (second, *key[1:]) in scores
    ]


def _of_pairs(paired: list[tuple[str | None, float]]) -> tuple[float, float, float, str]:
    models, gains = [model for model, _ in paired], [gain for _, gain in paired]
    means = group_means(gains, models)
    if len(means) == 1:
        return _bootstrap(gains)
    # Results of one model are not independent, and a bootstrap over few models is too narrow.
    mean = sum(means) / len(means)
    if len(set(means)) == 1:
        return mean, math.nan, math.nan, "none"
    return mean, *student(means, extra="sweeps"), "Student over models"


def interval(scores: Sequence[float]) -> tuple[float, float, float, str]:
    """The mean of scores, the bounds of its 95 % interval, and the method."""
    if not scores:
        return math.nan, math.nan, math.nan, "none"
    if set(scores) <= {0.0, 1.0}:
        mean = sum(scores) / len(scores)
        return mean, *wilson(mean, len(scores), extra="sweeps"), "Wilson"
    return _bootstrap(scores)


def _bootstrap(values: Sequence[float]) -> tuple[float, float, float, str]:
    mean = sum(values) / len(values)
    if len(values) < 2 or len(set(values)) == 1:
        # Nothing varies, so nothing can be resampled.
        return mean, math.nan, math.nan, "none"
    return mean, *bootstrap(values, extra="sweeps"), "bootstrap"


def plot(summary: Summary, path: str | Path, *, title: str = "") -> Path:
    """Draw a summary: one row per group, with a dot for the mean and a line for the interval.

    Rows have the colour of their tool set, in the order and the colours that the viewer uses.

    Args:
        summary: The summary.
        path: The file to write; its extension chooses PNG, SVG or PDF.
        title: The title of the plot.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figures = science("matplotlib.figure", extra="sweeps")
    groups = [group for group in summary.groups if group.n][::-1]
    sets = list(dict.fromkeys(group.tools for group in summary.groups))
    figure = figures.Figure(figsize=(8, 1.5 + 0.42 * max(len(groups), 1)), layout="constrained")
    axes = figure.subplots()
    for row, group in enumerate(groups):
        _draw(axes, row, group, _colour(sets.index(group.tools)))
    axes.set_yticks(range(len(groups)), [_label(group, sets) for group in groups])
    axes.set_ylim(-0.6, max(len(groups), 1) - 0.4)
    if all(0 <= bound <= 1 for group in groups for bound in _bounds(group)):
        axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel("score (mean, with 95 % interval)", color=_MUTED, fontsize=9)
    axes.set_title(title, loc="left", fontsize=11, color=_TEXT, fontweight="bold")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=_TEXT)
    axes.tick_params(axis="x", length=0, labelsize=8, labelcolor=_MUTED)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    if len(sets) > 1:
        _legend(figure, [str(name or "no tool set") for name in sets])
    figure.savefig(str(path), dpi=160)
    return Path(path)


def _draw(axes: Any, row: int, group: Group, colour: str) -> None:
    low, high = _bounds(group)
    axes.plot([low, high], [row, row], color=colour, alpha=0.45, linewidth=3.5, zorder=2)
    axes.plot([group.mean], [row], "o", color=colour, markersize=7.5, zorder=3)
    # To the right of the plot, where no line crosses the text.
    axes.annotate(
        f"{group.mean:.2f}   n = {group.n}",
        (1.0, row),
        xycoords=("axes fraction", "data"),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=_MUTED,
        annotation_clip=False,
    )


def _bounds(group: Group) -> tuple[float, float]:
    if math.isnan(group.low) or math.isnan(group.high):
        return group.mean, group.mean
    return group.low, group.high


def _label(group: Group, sets: list[str | None]) -> str:
    """The combination, without its tool set if the legend names that."""
    if len(sets) < 2:
        return group.label
    return " / ".join(part for part in (group.agent, group.model) if part) or group.label


def _legend(figure: Any, names: list[str]) -> None:
    lines = science("matplotlib.lines", extra="sweeps")
    handles = [
        lines.Line2D([], [], marker="o", linestyle="", color=_colour(index), label=name)
        for index, name in enumerate(names)
    ]
    figure.legend(
        handles=handles,
        loc="outside upper right",
        ncols=min(len(names), 4),
        frameon=False,
        fontsize=8,
        labelcolor=_TEXT,
    )


def _colour(index: int) -> str:
    red, green, blue = colorsys.hls_to_rgb(_HUES[index % len(_HUES)] / 360, 0.52, 0.58)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
