"""A sweep as a picture: one row per combination, its mean as a dot, its interval as a line."""

import importlib
import math
from pathlib import Path
from typing import Any

from seer.errors import MissingExtraError
from seer.sweeps._summary import Summary


def plot(summary: Summary, path: str | Path, *, title: str = "") -> Path:
    """Draw a summary; the file's ending says whether as PNG, SVG or PDF.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingExtraError(
            "plots need matplotlib; run: pip install 'seer-interp[sweeps]'"
        ) from error
    groups = [group for group in summary.groups if group.n][::-1]
    figure = figures.Figure(figsize=(7, 1.1 + 0.42 * max(len(groups), 1)), layout="constrained")
    axes = figure.subplots()
    for row, group in enumerate(groups):
        if not math.isnan(group.low):
            axes.plot([group.low, group.high], [row, row], color="#7f8fb3", linewidth=3, zorder=1)
        axes.plot([group.mean], [row], "o", color="#2b3f74", markersize=7, zorder=2)
        axes.annotate(
            f"{group.mean:.2f}  (n = {group.n})",
            (group.mean, row),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color="#444444",
        )
    axes.set_yticks(range(len(groups)), [group.label for group in groups])
    axes.set_ylim(-0.6, len(groups) - 0.2)
    axes.set_xlabel("score, with 95 % interval")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    figure.savefig(str(path), dpi=160)
    return Path(path)
