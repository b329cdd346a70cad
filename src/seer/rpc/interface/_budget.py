"""Budgets: how much may be used, and the meters that count it.

A `Budget` is what the user writes. A `Meter` counts against a budget, in memory that the supervisor
shares with the interface process, so that a crash does not reset it. Every call counts on three
meters: the whole interface's, its function's and its caller's.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Mapping

from seer.errors import BudgetExceededError

FIELDS = ("calls", "seconds", "gpu_seconds", "bytes")
WIDTH = len(FIELDS)
_lock = allocate_lock()


class Budget:
    """Limits on what is used; None for no limit.

    Attributes:
        calls: How many calls; each counts as its function's `cost`.
        seconds: How long functions may run in total.
        gpu_seconds: The same, counted only while the interface process uses a GPU.
        bytes: How many bytes of arguments and results, including arrays.
    """

    __slots__ = (*FIELDS, "limited")

    def __init__(
        self,
        *,
        calls: float | None = None,
        seconds: float | None = None,
        gpu_seconds: float | None = None,
        bytes: float | None = None,
    ) -> None:
        self.calls = _limit("calls", calls)
        self.seconds = _limit("seconds", seconds)
        self.gpu_seconds = _limit("gpu_seconds", gpu_seconds)
        self.bytes = _limit("bytes", bytes)
        self.limited = any(getattr(self, name) is not None for name in FIELDS)
        """Whether there is any limit."""

    def __repr__(self) -> str:
        given = ", ".join(f"{k}={v!r}" for k, v in self.to_json().items())
        return f"Budget({given})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Budget) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(tuple(self.to_json().items()))

    def to_json(self) -> dict[str, float]:
        """The limits that are set."""
        return {name: v for name in FIELDS if (v := getattr(self, name)) is not None}

    @classmethod
    def from_json(cls, found: Mapping[str, float]) -> Budget:
        """Read what `to_json` wrote.

        Raises:
            ValueError: A name is not a limit's, or a limit is not a number of 0 or more.
        """
        unknown = sorted(set(found) - set(FIELDS))
        if unknown:
            raise ValueError(f"a budget has no field {unknown[0]!r}; it has {', '.join(FIELDS)}")
        return cls(**found)


def as_told(amounts: Mapping[str, float]) -> dict[str, float]:
    """Amounts as callers are told them, in whole milliseconds.

    Records have the times of calls less exactly than meters, and a replay must tell the same.
    """
    times = ("seconds", "gpu_seconds")
    return {name: round(value, 3) if name in times else value for name, value in amounts.items()}


def _limit(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise ValueError(f"Budget({name}={value!r}): it must be a number, 0 or more, or None")
    return value


class Meter:
    """Counts what is used of one budget.

    Args:
        whose: Its owner, for messages: `the interface`, `function 'f'`, `this caller`.
        budget: The limits; may be replaced at any time.
        cells: The shared memory, as doubles.
        base: This meter's first cell.
        flat: Whether a call counts as one here, regardless of its cost.
    """

    __slots__ = ("base", "budget", "cells", "flat", "whose")

    def __init__(
        self, whose: str, budget: Budget, cells: memoryview[float], base: int, *, flat: bool = False
    ) -> None:
        self.flat = flat
        self.whose = whose
        self.budget = budget
        self.cells = cells
        self.base = base

    def used(self) -> dict[str, float]:
        """What was used so far."""
        base = self.base
        return dict(zip(FIELDS, self.cells[base : base + WIDTH].tolist(), strict=True))

    def left(self) -> dict[str, float]:
        """What is left of each limit that is set."""
        used = self.used()
        return {name: max(limit - used[name], 0) for name, limit in self.budget.to_json().items()}

    def check(self, calls: float) -> None:
        """Check that there is room for a call that counts as `calls`.

        Raises:
            BudgetExceededError: A limit is used up.
        """
        budget, cells, base = self.budget, self.cells, self.base
        if budget.calls is not None and cells[base] + calls > budget.calls:
            raise self._over("calls")
        if budget.seconds is not None and cells[base + 1] >= budget.seconds:
            raise self._over("seconds")
        if budget.gpu_seconds is not None and cells[base + 2] >= budget.gpu_seconds:
            raise self._over("gpu_seconds")
        if budget.bytes is not None and cells[base + 3] >= budget.bytes:
            raise self._over("bytes")

    def check_bytes(self, size: int, what: str) -> None:
        """Check that there is room for `size` more bytes.

        Raises:
            BudgetExceededError: There is no room.
        """
        limit = self.budget.bytes
        if limit is not None and self.cells[self.base + 3] + size > limit:
            raise BudgetExceededError(
                f"the budget of {self.whose} allows {limit:g} bytes and has no room for {what}"
                f" ({size} bytes)"
            )

    def _over(self, field: str) -> BudgetExceededError:
        """The error for a limit that is used up."""
        limit = getattr(self.budget, field)
        what = {"seconds": "s of running time", "gpu_seconds": "s of GPU time"}.get(field, field)
        return BudgetExceededError(
            f"the budget of {self.whose} is used up: {limit:g} {what} were allowed,"
            f" {self.used()[field]:.6g} are used"
        )


class Tally:
    """Counts one caller's use of one function, on the three meters of its calls.

    Each figure is added to the shared memory at once, so it is always exact, even after a crash.

    Args:
        meters: The meters of the interface, the function and the caller.
        cost: What one call takes from `calls`.

    Attributes:
        limited: Whether one of the meters has a limit; see `look`.
    """

    __slots__ = ("_bases", "_calls", "_cells", "_meters", "limited")

    def __init__(self, meters: tuple[Meter, Meter, Meter], cost: float) -> None:
        self._meters = meters
        self._cells = meters[0].cells
        self._bases = tuple(meter.base for meter in meters)
        self._calls = tuple(1.0 if meter.flat else cost for meter in meters)
        self.limited = False
        self.look()

    def look(self) -> None:
        """Read the budgets again, after one was changed."""
        self.limited = any(meter.budget.limited for meter in self._meters)

    def admit(self) -> None:
        """Count one call on all meters, or on none.

        Raises:
            BudgetExceededError: A meter has no room for it.
        """
        first, second, third = self._bases
        one, two, three = self._calls
        cells = self._cells
        with _lock:
            if self.limited:
                for meter, calls in zip(self._meters, self._calls, strict=True):
                    meter.check(calls)
            cells[first] += one
            cells[second] += two
            cells[third] += three

    def give_back(self) -> None:
        """Undo `admit`, for a call that was not executed."""
        with _lock:
            for base, calls in zip(self._bases, self._calls, strict=True):
                self._cells[base] -= calls

    def charge(self, seconds: float, gpu_seconds: float = 0.0, size: float = 0.0) -> None:
        """Count what a call has used, besides what `admit` counted."""
        first, second, third = self._bases
        cells = self._cells
        with _lock:
            cells[first + 1] += seconds
            cells[second + 1] += seconds
            cells[third + 1] += seconds
            if gpu_seconds:
                for base in self._bases:
                    cells[base + 2] += gpu_seconds
            if size:
                cells[first + 3] += size
                cells[second + 3] += size
                cells[third + 3] += size

    def take_bytes(self, size: int, what: str) -> None:
        """Count `size` bytes that are about to be sent, if all meters have room for them.

        Raises:
            BudgetExceededError: A meter has no room for them; nothing is counted.
        """
        cells = self._cells
        with _lock:
            if self.limited:
                for meter in self._meters:
                    meter.check_bytes(size, what)
            for base in self._bases:
                cells[base + 3] += size

    def seconds_left(self, *, gpu: bool) -> float:
        """How long a call may run before a meter is used up."""
        names = ("seconds", "gpu_seconds") if gpu else ("seconds",)
        found = [meter.left() for meter in self._meters if meter.budget.limited]
        return min((left[n] for left in found for n in names if n in left), default=float("inf"))
