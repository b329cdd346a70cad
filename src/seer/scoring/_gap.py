"""The tool-to-agent gap: how much more the same agent finds with a tool set than without it.

Runs are compared in pairs of the same organism and seed. Finding a property (in organisms) and
clearing a clean model (in controls) are counted separately, because an agent that always says
"nothing" is perfect in the second and useless in the first.

There are two questions about a gap, with different answers. Does the tool set change the results on
*these* organisms? The exact McNemar test over the pairs answers this. Would it change the results
on similar organisms? Then an organism is the unit, no matter how often it was run.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from seer._statistics import group_means, science
from seer.organisms import catalogue
from seer.scoring._rates import Rate, rate


class Scored(Protocol):
    """One run: its agent, tools, organism and seed, and whether it was right."""

    @property
    def agent(self) -> str: ...
    @property
    def tools(self) -> str: ...
    @property
    def organism(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def control(self) -> bool: ...
    @property
    def correct(self) -> bool | None: ...


@dataclass(frozen=True)
class Gap:
    """The gain of a tool set over the reference, from pairs of runs of one organism and seed."""

    value: float
    """The mean over organisms of the mean over their pairs."""
    low: float
    high: float
    """The 95 % interval for similar organisms, not corrected; NaN if there is only one organism."""
    organisms: int
    pairs: int
    p: float
    """For similar organisms; corrected by Holm for all gaps of the table."""
    p_pairs: float
    """For these organisms only: the exact McNemar test, corrected in the same way."""


@dataclass(frozen=True)
class GapRow:
    """One agent with one tool set, against the same agent with the reference tools."""

    agent: str
    tools: str
    sensitivity: Rate | None
    """How often a planted property was found; None if there is no run on an organism."""
    specificity: Rate | None
    """How often a control was found clean; None if there is no run on a control."""
    sensitivity_gap: Gap | None
    specificity_gap: Gap | None
    """None for the reference itself, and if no two runs form a pair."""
    missing: int
    """Runs without a result. They count neither as right nor as wrong."""


_Results = dict[tuple[str, int], bool]
"""Whether each run was right, by organism and seed."""


def tool_gap(outcomes: Sequence[Scored], reference: str) -> list[GapRow]:
    """Rates by agent and tool set, and the gain of each tool set over the reference.

    Args:
        outcomes: The runs. Each agent is compared only with itself. A run whose `correct` is None
            has no result, for example because its program failed; it counts as missing, and its
            pair is left out. A short name of an organism and the name of its instance are one
            organism.
        reference: The tool set to compare with.

    Raises:
        ValueError: Two runs have the same agent, tools, organism and seed.
        MissingExtraError: SciPy or statsmodels is not installed.
    """
    cells: dict[tuple[str, str], tuple[_Results, _Results]] = {}
    missing: dict[tuple[str, str], int] = {}
    seen: set[tuple[str, str, str, int]] = set()
    shipped = {name: str(one.path) for name, one in catalogue().items()}
    for run in outcomes:
        cell = run.agent, run.tools
        # Two names of one adapter are one organism, so the adapter's folder identifies it.
        organism = shipped.get(run.organism, run.organism)
        if (*cell, organism, run.seed) in seen:
            raise ValueError(
                f"two runs of {run.agent!r} with {run.tools!r} on {run.organism!r} have seed "
                f"{run.seed}; give every repetition a seed of its own"
            )
        seen.add((*cell, organism, run.seed))
        both = cells.setdefault(cell, ({}, {}))
        if run.correct is None:
            missing[cell] = missing.get(cell, 0) + 1
        else:
            both[run.control][organism, run.seed] = run.correct
    rows: list[GapRow] = []
    for cell, both in sorted(cells.items()):
        base = cells.get((cell[0], reference)) if cell[1] != reference else None
        organisms, controls = both
        base_organisms, base_controls = base or ({}, {})
        rows.append(
            GapRow(
                *cell,
                sensitivity=_rate(organisms),
                specificity=_rate(controls),
                sensitivity_gap=_gap(organisms, base_organisms),
                specificity_gap=_gap(controls, base_controls),
                missing=missing.get(cell, 0),
            )
        )
    return _corrected(rows)


def _rate(results: _Results) -> Rate | None:
    return rate([*results.values()], [name for name, _ in results]) if results else None


def _gap(first: _Results, second: _Results) -> Gap | None:
    pairs = [key for key in first if key in second]
    if not pairs:
        return None
    better = sum(first[key] and not second[key] for key in pairs)
    worse = sum(second[key] and not first[key] for key in pairs)
    tables = science("statsmodels.stats.contingency_tables")
    exact = float(tables.mcnemar([[0, better], [worse, 0]], exact=True).pvalue)
    means = group_means([first[k] - second[k] for k in pairs], [name for name, _ in pairs])
    value = sum(means) / len(means)
    low, high, p = _over_organisms(means, better, worse, len(pairs))
    return Gap(value, low, high, len(means), len(pairs), p, exact)


def _over_organisms(
    means: Sequence[float], better: int, worse: int, pairs: int
) -> tuple[float, float, float]:
    """The interval and p for similar organisms: the wider of two intervals, and the larger p.

    Student's interval over the organisms' means is right for few organisms that vary (a bootstrap
    over four misses far too often). If all means happen to be equal, its width is 0. Bonett and
    Price's interval over the pairs has a width even then; its number of pairs is reduced if there
    are few organisms.
    """
    if len(means) < 2:
        return math.nan, math.nan, math.nan
    special = science("scipy.special")
    value, free = sum(means) / len(means), len(means) - 1
    normal, student = special.ndtri(0.975), special.stdtrit(free, 0.975)
    fewer = (normal / student) ** 2
    n = pairs * fewer + 2
    p, q = (better * fewer + 1) / n, (worse * fewer + 1) / n
    by_pairs = math.sqrt((p + q - (p - q) ** 2) / n)
    between = statistics.stdev(means) / math.sqrt(len(means))
    reach = max(student * between, normal * by_pairs)
    chance = float(2 * special.ndtr(-abs(value) / by_pairs))
    if between:
        chance = max(chance, float(2 * special.stdtr(free, -abs(value) / between)))
    return max(-1.0, float(value - reach)), min(1.0, float(value + reach)), chance


def _corrected(rows: Sequence[GapRow]) -> list[GapRow]:
    """The rows with the p of their gaps corrected by Holm, separately for each kind of p."""
    gaps = [gap for row in rows for gap in (row.sensitivity_gap, row.specificity_gap)]
    by_organism = _holm([gap.p if gap else math.nan for gap in gaps])
    by_pair = _holm([gap.p_pairs if gap else math.nan for gap in gaps])
    fixed = [
        gap and replace(gap, p=p, p_pairs=p_pairs)
        for gap, p, p_pairs in zip(gaps, by_organism, by_pair, strict=True)
    ]
    return [
        replace(row, sensitivity_gap=sensitivity, specificity_gap=specificity)
        for row, sensitivity, specificity in zip(rows, fixed[::2], fixed[1::2], strict=True)
    ]


def _holm(chances: Sequence[float]) -> list[float]:
    """Holm's correction; NaN is not a test and stays NaN."""
    # Not statsmodels' function, which runs a full garbage collection (0.1 s) at each call.
    tests = sorted((p, place) for place, p in enumerate(chances) if not math.isnan(p))
    found, least = [*chances], 0.0
    for done, (p, place) in enumerate(tests):
        least = found[place] = max(least, min(1.0, p * (len(tests) - done)))
    return found


def gap_table(rows: Sequence[GapRow]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| agent | tools | found in organisms | controls cleared | gap in organisms "
        "| gap in controls | no result |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row.agent, row.tools, row.sensitivity or "-", row.specificity or "-",
                 _told(row.sensitivity_gap), _told(row.specificity_gap), row.missing)  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def _told(gap: Gap | None) -> str:
    if gap is None:
        return "-"
    if math.isnan(gap.low):
        return f"{gap.value:+.2f} (1 organism, {gap.pairs} pairs; pairs p {_chance(gap.p_pairs)})"
    return (
        f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}], p {_chance(gap.p)} "
        f"({gap.organisms} organisms, {gap.pairs} pairs; pairs p {_chance(gap.p_pairs)})"
    )


def _chance(p: float) -> str:
    """A p-value with its relation; a test never proves that it is 0."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def plot_gap(rows: Sequence[GapRow], path: Path | str) -> None:
    """Draw the rates with their intervals; each row has a line for organisms and one for controls.

    Raises:
        ValueError: There are no rows.
        MissingExtraError: Matplotlib is not installed.
    """
    if not rows:
        raise ValueError("there is nothing to draw")
    figures = science("matplotlib.figure")
    figure = figures.Figure(figsize=(7, 1.4 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for label, colour, shift, found in (
        ("found in organisms", "tab:blue", 0.12, [row.sensitivity for row in rows]),
        ("controls cleared", "tab:orange", -0.12, [row.specificity for row in rows]),
    ):
        shown = [(place + shift, r) for place, r in enumerate(reversed(found)) if r]
        for place, one in shown:
            axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2)
        values = [one.value for _, one in shown]
        axes.plot(values, [place for place, _ in shown], "o", color=colour, label=label)
    axes.set_yticks(range(len(rows)), [f"{r.agent}, {r.tools}" for r in reversed(rows)])
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("rate, with 95 % interval over organisms")
    figure.legend(loc="outside upper right", ncols=2)
    figure.savefig(path)
