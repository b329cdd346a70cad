"""The five functions that every contestant serves, so that all do the same work.

Servers import them from here. Seer's own contestant serves an interface file whose exposed
functions have these bodies.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    FloatArray = np.ndarray[Any, np.dtype[np.float32]]


def small(x: int) -> int:
    """Do almost nothing."""
    return x + 1


@cache
def _numbers(n: int) -> list[float]:
    return [i * 0.1 + 0.05 for i in range(n)]


def floats(n: int) -> list[float]:
    """Return an existing list, so that only the transport is measured."""
    return _numbers(n)


def take(values: list[float]) -> float:
    """Return the last value, so that the whole list must be decoded."""
    return values[-1]


@cache
def _array(nbytes: int) -> FloatArray:
    import numpy as np

    return np.arange(nbytes // 4, dtype=np.float32)


def array(nbytes: int, stamp: int) -> FloatArray:
    """Return an existing array. Each call changes it, so that no answer can be reused."""
    result = _array(nbytes)
    result[0] = stamp
    return result


def fail(message: str) -> None:
    """Raise."""
    raise ValueError(message)
