"""How often intervals of a tool-to-agent gap miss the truth: `python benchmarks/campaign_gap.py`.

A study has four organisms, three seeds and two tool sets. The simulated worlds differ in how alike
the runs on one organism are. In all worlds except the last, the tool sets are equally good over all
organisms. Three intervals are judged on the same runs: the pooled one (Newcombe's), a bootstrap
over organisms, and `tool_gap`'s. The table goes to `results/gap.md`. `tests/scoring/test_gap.py`
runs the same code with smaller numbers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks._common import RESULTS, header, machine, versions  # noqa: E402
from seer.scoring import difference, tool_gap  # noqa: E402

ORGANISMS, SEEDS = 4, 3


@dataclass(frozen=True)
class Run:
    """One run, in the form that `tool_gap` reads."""

    agent: str
    tools: str
    organism: str
    seed: int
    control: bool
    correct: bool | None


Draw = Callable[[np.random.Generator, int], Any]
"""Each tool set's chance of success on each organism: an array of tool sets by organisms."""


@dataclass(frozen=True)
class World:
    """How chances are sampled, and the gap of tool sets to the reference over all organisms."""

    draw: Draw
    gap: float = 0.0


def _some(chance: np.random.Generator, sets: int) -> Any:
    helped = chance.random((sets, ORGANISMS)) < 0.3
    helped[0] = False
    return helped.astype(float)


WORLDS = {
    "all runs independent, chance 0.5": World(lambda _, sets: np.full((sets, ORGANISMS), 0.5)),
    "all runs independent, chance 0.9": World(lambda _, sets: np.full((sets, ORGANISMS), 0.9)),
    "organisms differ, tools do not": World(
        lambda r, sets: np.tile(r.beta(0.5, 0.5, ORGANISMS), (sets, 1))
    ),
    "a tool suits an organism or not": World(lambda r, sets: r.beta(0.5, 0.5, (sets, ORGANISMS))),
    "the same, seeds hardly differ": World(lambda r, sets: r.beta(0.1, 0.1, (sets, ORGANISMS))),
    "a tool solves three organisms of ten, and alone": World(_some, 0.3),
}


def worlds(world: World, times: int, *, sets: int = 1, seed: int = 0) -> Iterator[list[Run]]:
    """Runs of a reference and of other tool sets."""
    chance = np.random.default_rng(seed)
    for _ in range(times):
        rates = world.draw(chance, sets + 1)
        success = chance.random((sets + 1, ORGANISMS, SEEDS)) < rates[:, :, None]
        yield [
            Run("a", f"tools-{i}", f"organism-{k}", s, control=False, correct=bool(right))
            for (i, k, s), right in np.ndenumerate(success)
        ]


def pooled(runs: list[Run], gap: float) -> bool:
    """Whether Newcombe's interval over all runs misses a gap."""
    first, second = (
        [bool(r.correct) for r in runs if r.tools == t] for t in ("tools-1", "tools-0")
    )
    found = difference(first, second)
    return not found.low <= gap <= found.high


def resampled(runs: list[Run], gap: float, draws: int = 999) -> bool:
    """Whether the percentile bootstrap over organisms misses a gap."""
    sign = {"tools-1": 1, "tools-0": -1}
    gains = np.zeros(ORGANISMS, int)
    for run in runs:
        gains[int(run.organism[-1])] += sign[run.tools] * bool(run.correct)
    chance = np.random.default_rng(0)
    drawn = gains[chance.integers(0, ORGANISMS, (draws, ORGANISMS))].mean(axis=1) / SEEDS
    low, high = np.quantile(drawn, (0.025, 0.975))
    return not low <= gap <= high


def clustered(runs: list[Run], gap: float) -> bool:
    """Whether `tool_gap`'s interval misses a gap."""
    found = tool_gap(runs, "tools-0")[1].sensitivity_gap
    assert found is not None
    return not found.low <= gap <= found.high


WAYS = (pooled, resampled, clustered)


def claims(runs: list[Run]) -> tuple[bool, bool]:
    """Whether any of several tool sets is called different, without and with the correction."""
    gaps = [row.sensitivity_gap for row in tool_gap(runs, "tools-0")]
    plain = any(gap is not None and not gap.low <= 0 <= gap.high for gap in gaps)
    return plain, any(gap is not None and gap.p < 0.05 for gap in gaps)


def main() -> None:
    """Simulate, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=2000)
    times = parser.parse_args().times
    where, begin = machine(), time.monotonic()
    lines = [
        f"Share of {times} simulated studies in which a 95 % interval misses the true gap "
        f"({ORGANISMS} organisms, {SEEDS} seeds); 0.05 is what it promises.\n",
        "| world | pooled | bootstrap over organisms | `tool_gap` |",
        "|---|---|---|---|",
    ]
    for name, world in WORLDS.items():
        missed = [[way(r, world.gap) for way in WAYS] for r in worlds(world, times)]
        lines.append(
            f"| {name} | " + " | ".join(f"{x:.3f}" for x in np.mean(missed, axis=0)) + " |"
        )
    world = WORLDS["a tool suits an organism or not"]
    plain, corrected = np.mean([claims(r) for r in worlds(world, times, sets=6)], axis=0)
    lines.append(
        f"\nSix tool sets, none better: at least one is called different in {plain:.3f} of the "
        f"studies by its interval, and in {corrected:.3f} by Holm's p.\n"
    )
    where["time"] = f"{time.monotonic() - begin:.0f} s"
    packages = versions(Path(sys.executable), ("numpy", "scipy", "statsmodels"))
    page = "\n".join([header("How often intervals of a gap miss it", packages, where), *lines])
    (RESULTS / "gap.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
