"""Success rates with intervals. The formulas are statsmodels'."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seer.errors import MissingExtraError


@dataclass(frozen=True)
class Rate:
    """A proportion, or a difference of two, with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}] (n={self.n})"


def rate(results: Sequence[bool]) -> Rate:
    """How often something happened (Wilson's interval).

    Raises:
        ValueError: There are no results.
    """
    if not results:
        raise ValueError("a rate needs at least one result")
    low, high = proportions().proportion_confint(sum(results), len(results), method="wilson")
    return Rate(sum(results) / len(results), float(low), float(high), len(results))


def difference(first: Sequence[bool], second: Sequence[bool]) -> Rate:
    """The first rate less the second (Newcombe's interval).

    Raises:
        ValueError: One of them has no results.
    """
    if not first or not second:
        raise ValueError("a difference needs results on both sides")
    low, high = proportions().confint_proportions_2indep(
        sum(first), len(first), sum(second), len(second), method="newcomb", compare="diff"
    )
    value = sum(first) / len(first) - sum(second) / len(second)
    return Rate(value, float(low), float(high), min(len(first), len(second)))


def proportions() -> Any:
    """statsmodels' module on proportions.

    Raises:
        MissingExtraError: It is not installed.
    """
    return science("statsmodels.stats.proportion")


def science(module: str) -> Any:
    """A module of the extra `science`, as a plain object: its annotations are partial.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed; run: pip install 'seer-interp[science]'"
        ) from error
