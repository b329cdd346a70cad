# pyright: basic
# The libraries used here have no type hints.
"""The small-call row as a bar chart: `python -m benchmarks.gate._chart gate.json gate.png`.

Runs in the peers' environment, which has matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_COLOURS = {"ours": "#c2410c", "floor": "#94a3b8", "peer": "#1e3a5f"}


def main(source: Path, target: Path) -> None:
    """Draw the contestants of the file, with the fastest at the top."""
    contestants = json.loads(source.read_text())["contestants"]
    rows = sorted(
        (row["medians"]["small"], row["title"], row["kind"])
        for row in contestants.values()
        if "small" in row["medians"]
    )
    figure, axes = pyplot.subplots(figsize=(9, 0.42 * len(rows) + 1.2), layout="constrained")
    names = [title for _, title, _ in rows]
    bars = axes.barh(names, [value for value, _, _ in rows], color=[_COLOURS[k] for *_, k in rows])
    axes.bar_label(bars, labels=[f"{value:,.0f}" for value, _, _ in rows], padding=3, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(right=rows[-1][0] * 2.5)
    axes.invert_yaxis()
    axes.set_xlabel("small call, one client: microseconds, median (logarithmic)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
