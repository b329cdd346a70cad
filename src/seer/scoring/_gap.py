"""The tool-to-agent gap: how much more the same agent finds with a tool set than without it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from seer.scoring._rates import Rate, difference, rate, science


class Scored(Protocol):
    """What a gap is made of: one run, by whom, with what, and whether it was right."""

    @property
    def agent(self) -> str: ...
    @property
    def tools(self) -> str: ...
    @property
    def correct(self) -> bool: ...


@dataclass(frozen=True)
class GapRow:
    """One agent with one tool set, against the same agent with the reference tools."""

    agent: str
    tools: str
    rate: Rate
    gap: Rate | None
    """None for the reference itself, or where the agent never ran with it."""


def tool_gap(outcomes: Sequence[Scored], reference: str) -> list[GapRow]:
    """Rates by agent and tool set, and what each tool set adds to the reference.

    Args:
        outcomes: Runs. Each agent is compared with itself only.
        reference: The tool set to compare with.
    """
    cells: dict[tuple[str, str], list[bool]] = {}
    for outcome in outcomes:
        cells.setdefault((outcome.agent, outcome.tools), []).append(outcome.correct)
    rows: list[GapRow] = []
    for (agent, tools), results in sorted(cells.items()):
        base = cells.get((agent, reference))
        gap = None if tools == reference or base is None else difference(results, base)
        rows.append(GapRow(agent, tools, rate(results), gap))
    return rows


def gap_table(rows: Sequence[GapRow]) -> str:
    """The rows as a Markdown table."""
    lines = ["| agent | tools | found | gap |", "|---|---|---|---|"]
    for row in rows:
        gap = "reference" if row.gap is None else f"{row.gap.value:+.2f} " + _bounds(row.gap)
        lines.append(f"| {row.agent} | {row.tools} | {row.rate} | {gap} |")
    return "\n".join(lines) + "\n"


def plot_gap(rows: Sequence[GapRow], path: Path | str) -> None:
    """Draw the rates with their intervals, one line per agent and tool set.

    Raises:
        ValueError: There are no rows.
        MissingExtraError: Matplotlib is not installed.
    """
    if not rows:
        raise ValueError("there is nothing to draw")
    figures = science("matplotlib.figure")
    figure = figures.Figure(figsize=(7, 1 + 0.45 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(reversed(rows)):
        found = row.rate
        axes.plot([found.low, found.high], [place, place], color="tab:blue", linewidth=2)
        axes.plot([found.value], [place], "o", color="tab:blue")
    axes.set_yticks(range(len(rows)), [f"{r.agent}, {r.tools}" for r in reversed(rows)])
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("found, with 95 % interval")
    figure.savefig(path)


def _bounds(found: Rate) -> str:
    return f"[{found.low:+.2f}, {found.high:+.2f}]"
