"""The interface file of Seer's own contestant: the five functions, exposed."""

# pyright: reportUndefinedVariable=false

from benchmarks.gate import _work


@expose  # noqa: F821 (injected)
def small(x: int) -> int:
    """Do almost nothing."""
    return _work.small(x)


@expose  # noqa: F821 (injected)
def floats(n: int) -> list[float]:
    """Return a list that exists already."""
    return _work.floats(n)


@expose  # noqa: F821 (injected)
def take(values: list[float]) -> float:
    """Return the last value."""
    return _work.take(values)


@expose  # noqa: F821 (injected)
def array(nbytes: int, stamp: int):  # only this function imports numpy
    """Return an array that exists already."""
    return _work.array(nbytes, stamp)


@expose  # noqa: F821 (injected)
def fail(message: str) -> None:
    """Raise."""
    _work.fail(message)
