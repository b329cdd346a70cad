"""The options of `@expose(...)`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


@dataclass(slots=True, eq=False, kw_only=True)
class Options:
    """How a function may be called.

    Attributes:
        timeout: Seconds that one call may run, even if its caller would wait longer; None for no
            limit.
        max_calls: How many calls are served in all; None for no limit.
        max_concurrency: How many calls run at once. By default, functions that are not async share
            one lane, so that module state is safe without locks. With `batch`, calls are not
            collected: each runs at once on its own thread, with lists of one item. That is for a
            function that itself combines concurrent calls.
        batch: Up to this many concurrent calls are collected into one call of the function, which
            takes lists: a parameter hinted `list[T]` has a `T` from each call, the calls of a batch
            share all other parameters, and the result is a list with one item per call. The
            default of a batched parameter is a tuple with the item for a call that leaves it out.
            1 for no batching.
        batch_wait: Seconds that a call waits for others to join its batch.
        cost: What one call takes from a budget's `calls`.
        idempotent: Whether a call that was lost in a crash may be made again.
        stateful: Whether calls depend on the state that earlier calls left, so that a caller must
            stay with one copy of the interface.
    """

    timeout: float | None = None
    max_calls: int | None = None
    max_concurrency: int | None = None
    batch: int = 1
    batch_wait: float = 0.005
    cost: float = 1
    idempotent: bool = False
    stateful: bool = True

    def __post_init__(self) -> None:
        if self.timeout is not None:
            _check_number("timeout", self.timeout, above=0)
        if self.max_calls is not None:
            _check_count("max_calls", self.max_calls)
        if self.max_concurrency is not None:
            _check_count("max_concurrency", self.max_concurrency)
        _check_count("batch", self.batch)
        _check_number("batch_wait", self.batch_wait)
        _check_number("cost", self.cost)
        _check_flag("idempotent", self.idempotent)
        _check_flag("stateful", self.stateful)

    def to_json(self) -> dict[str, Any]:
        """The options that are not the default."""
        return {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default
        }


def _check_number(name: str, value: Any, *, above: float | None = None) -> None:
    if type(value) not in (int, float) or not 0 <= value < float("inf") or value == above:
        least = "more than 0" if above is not None else "0 or more"
        raise ValueError(f"expose({name}={value!r}): it must be a number, {least}")


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"expose({name}={value!r}): it must be a whole number, 1 or more")


def _check_flag(name: str, value: Any) -> None:
    if type(value) is not bool:
        raise ValueError(f"expose({name}={value!r}): it must be True or False")
