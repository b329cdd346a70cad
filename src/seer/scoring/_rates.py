"""Success rates with intervals."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from seer._statistics import group_means, science, wilson


@dataclass(frozen=True)
class Rate:
    """A proportion, or a difference of two, with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}] (n={self.n})"


def rate(results: Sequence[bool], groups: Sequence[str] | None = None) -> Rate:
    """How often something happened (Wilson's interval).

    Args:
        results: What happened.
        groups: The group of each result, such as an organism. Results of one group resemble each
            other, so each group has the same weight, and the interval is computed for the effective
            number of independent results (Korn and Graubard). If all results are the same, this is
            the number of groups. With one group, the interval is for that group only.

    Raises:
        ValueError: There are no results, or not one group per result.
    """
    if not results:
        raise ValueError("a rate needs at least one result")
    value, n = sum(results) / len(results), float(len(results))
    means = group_means(results, groups) if groups is not None else []
    if len(means) > 1:
        special = science("scipy.special")
        value = sum(means) / len(means)
        between = statistics.variance(means) / len(means)
        if between:
            n = min(n, value * (1 - value) / between)
        elif value in (0, 1):
            # All results are equal, so their variation within a group is unknown.
            n = len(means)
        n *= (special.ndtri(0.975) / special.stdtrit(len(means) - 1, 0.975)) ** 2
    low, high = wilson(value, n)
    return Rate(value, low, high, len(results))


def difference(first: Sequence[bool], second: Sequence[bool]) -> Rate:
    """The first rate less the second, of independent results (Newcombe's interval).

    Runs of the same organism or seed are not independent; `tool_gap` compares those.

    Raises:
        ValueError: One of them has no results.
    """
    if not first or not second:
        raise ValueError("a difference needs results on both sides")
    low, high = science("statsmodels.stats.proportion").confint_proportions_2indep(
        sum(first), len(first), sum(second), len(second), method="newcomb", compare="diff"
    )
    value = sum(first) / len(first) - sum(second) / len(second)
    return Rate(value, float(low), float(high), min(len(first), len(second)))
