"""What `@expose(...)` says about a function beyond its signature."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


class Options:
    """How a function may be called.

    Attributes:
        timeout: Seconds that one call may run, however long the caller would wait; None for no
            limit.
        max_calls: How many calls are served in all; None for no limit.
        max_concurrency: How many calls run at once. Functions that are not async share one lane by
            default, so that module state is safe without locks. With `batch`, calls are not
            collected: each runs at once, on a thread of its own, with lists of one item. That is
            for a function that brings concurrent calls together by itself.
        batch: Up to this many concurrent calls are collected into one call of the function, which
            is written over lists: parameters hinted `list[T]` take a `T` from each caller, all
            others are shared by the calls of a batch; the result is a list with one item per call.
            A batched parameter's default is a tuple of the one item that a call gets without it.
            1 for no batching.
        batch_wait: Seconds a call waits for others to join its batch.
        cost: What one call takes from a budget's `calls`.
        idempotent: Whether a call that was lost in a crash may be made again.
        stateful: Whether calls depend on what earlier calls left behind, so that a caller must
            stay with one copy of the interface.
    """

    __slots__ = (
        "batch",
        "batch_wait",
        "cost",
        "idempotent",
        "max_calls",
        "max_concurrency",
        "stateful",
        "timeout",
    )

    def __init__(
        self,
        *,
        timeout: float | None = None,
        max_calls: int | None = None,
        max_concurrency: int | None = None,
        batch: int = 1,
        batch_wait: float = 0.005,
        cost: float = 1,
        idempotent: bool = False,
        stateful: bool = True,
    ) -> None:
        self.timeout = timeout if timeout is None else _number("timeout", timeout, above=0)
        self.max_calls = max_calls if max_calls is None else _count("max_calls", max_calls)
        self.max_concurrency = (
            None if max_concurrency is None else _count("max_concurrency", max_concurrency)
        )
        self.batch = _count("batch", batch)
        self.batch_wait = _number("batch_wait", batch_wait)
        self.cost = _number("cost", cost)
        self.idempotent = _flag("idempotent", idempotent)
        self.stateful = _flag("stateful", stateful)

    def to_json(self) -> dict[str, Any]:
        """The options that are not the default."""
        return {
            name: value
            for name in self.__slots__
            if (value := getattr(self, name)) != getattr(_plain, name)
        }


def _number(name: str, value: Any, *, above: float | None = None) -> Any:
    if type(value) not in (int, float) or not 0 <= value < float("inf") or value == above:
        least = "more than 0" if above is not None else "0 or more"
        raise ValueError(f"expose({name}={value!r}): it must be a number, {least}")
    return value


def _count(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"expose({name}={value!r}): it must be a whole number, 1 or more")
    return value


def _flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"expose({name}={value!r}): it must be True or False")
    return value


_plain = Options()
