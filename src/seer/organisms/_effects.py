"""How large a property is: organism against control, with an interval."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from seer._statistics import bootstrap


@dataclass(frozen=True)
class Effect:
    """The mean difference between an organism and its control, in nats of log-odds."""

    mean: float
    low: float
    high: float
    """The bounds of the 95 % interval (bootstrap over items, bias-corrected and accelerated)."""
    standardized: float
    """The mean over the standard deviation of the differences (Cohen's d for pairs)."""
    items: int


def compare(organism: Sequence[float], control: Sequence[float], *, seed: int = 0) -> Effect:
    """Compare two models' scores on the same items.

    Args:
        organism: One score per item.
        control: The control's, in the same order.
        seed: Of the bootstrap.

    Raises:
        ValueError: The lists differ in length, or hold fewer than three items.
        MissingExtraError: SciPy is not installed.
    """
    if len(organism) != len(control) or len(organism) < 3:
        raise ValueError(
            f"need the same items for both, three at least; got {len(organism)} and {len(control)}"
        )
    differences = [one - other for one, other in zip(organism, control, strict=True)]
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    if spread == 0.0:
        return Effect(mean, mean, mean, float("inf") if mean else 0.0, len(organism))
    low, high = bootstrap(differences, resamples=4000, seed=seed)
    return Effect(mean, low, high, mean / spread, len(organism))
