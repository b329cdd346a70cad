"""How large a property is: organism against control, with an interval.

Statistics are SciPy's; here is only which numbers are compared.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seer.errors import MissingExtraError


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
    try:
        stats: Any = importlib.import_module("scipy.stats")
        numpy: Any = importlib.import_module("numpy")
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is needed for intervals; run: pip install 'seer-interp[science]'"
        ) from error
    differences = numpy.asarray(organism) - numpy.asarray(control)
    spread = float(differences.std(ddof=1))
    mean = float(differences.mean())
    if spread == 0.0:
        return Effect(mean, mean, mean, float("inf") if mean else 0.0, len(organism))
    found = stats.bootstrap(
        (differences,), numpy.mean, n_resamples=4000, rng=numpy.random.default_rng(seed)
    ).confidence_interval
    return Effect(mean, float(found.low), float(found.high), mean / spread, len(organism))
