"""Intervals of means and rates, for scores, sweeps and organisms.

SciPy has the distributions and the bootstrap. It belongs to an extra, so it is imported on use.
"""

import importlib
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from seer.errors import MissingExtraError

Interval = tuple[float, float]
"""The lower and the upper bound of a 95 % interval."""


def science(module: str, *, extra: str = "science") -> Any:
    """Import a module of an extra. Its type is `Any`, because its annotations are partial.

    Raises:
        MissingExtraError: The module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed; run: pip install 'seer-interp[{extra}]'"
        ) from error


def wilson(share: float, n: float, *, extra: str = "science") -> Interval:
    """Wilson's interval of a rate. `n` may be fractional, as an effective sample size is."""
    z = float(science("scipy.special", extra=extra).ndtri(0.975))
    center = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, center - reach), min(1.0, center + reach)


def student(means: Sequence[float], *, extra: str = "science") -> Interval:
    """Student's interval of the mean of at least two independent values."""
    mean = sum(means) / len(means)
    quantile = float(science("scipy.special", extra=extra).stdtrit(len(means) - 1, 0.975))
    reach = quantile * statistics.stdev(means) / math.sqrt(len(means))
    return mean - reach, mean + reach


def bootstrap(values: Sequence[float], *, extra: str = "science") -> Interval:
    """The bootstrap's interval of the mean (bias-corrected and accelerated) of values that vary.

    The same values give the same interval.
    """
    average: Callable[..., Any] = science("numpy", extra=extra).mean
    found = science("scipy.stats", extra=extra).bootstrap(
        (list(values),), average, rng=0, n_resamples=9999
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def group_means(values: Sequence[float], groups: Sequence[str | None]) -> list[float]:
    """The mean of each group.

    Raises:
        ValueError: The numbers of groups and values differ.
    """
    found: dict[str | None, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        found.setdefault(group, []).append(value)
    return [sum(group) / len(group) for group in found.values()]
