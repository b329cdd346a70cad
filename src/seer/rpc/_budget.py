"""Budgets: how much may be used, and the meters that count it.

A `Budget` is what the user writes. A `Meter` counts against one, in memory that the supervisor
shares with the interface process, so that a crash does not reset what was used. Every call passes
three: that of the whole interface, that of its function, that of its caller.
"""

from __future__ import annotations

from _thread import allocate_lock

from seer.errors import BudgetExceededError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FIELDS = ("calls", "seconds", "gpu_seconds", "bytes")
WIDTH = len(FIELDS)
_lock = allocate_lock()


class Budget:
    """Limits on what is used; None for no limit.

    Attributes:
        calls: How many calls (each counts as its function's `cost`).
        seconds: How long functions may run in all.
        gpu_seconds: The same, counted only while the interface's process uses a GPU.
        bytes: How many bytes of arguments and results, arrays included.
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
        """The limits that there are."""
        return {name: v for name in FIELDS if (v := getattr(self, name)) is not None}

    @classmethod
    def from_json(cls, found: Mapping[str, float]) -> Budget:
        """Read what `to_json` gave.

        Raises:
            ValueError: It names something else, or a limit is no number of 0 or more.
        """
        unknown = sorted(set(found) - set(FIELDS))
        if unknown:
            raise ValueError(f"a budget has no {unknown[0]!r}; it has {', '.join(FIELDS)}")
        return cls(**found)


def _limit(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise ValueError(f"Budget({name}={value!r}): it must be a number, 0 or more, or None")
    return value


class Meter:
    """Counts what is used of one budget.

    Args:
        whose: What it belongs to, for messages: `the interface`, `function 'f'`, `this caller`.
        budget: The limits; may be replaced at any time.
        cells: Shared memory as doubles.
        base: Where this meter's cells begin.
        flat: Whether a call counts as one here, whatever its cost.
    """

    __slots__ = ("_base", "_cells", "budget", "flat", "whose")

    def __init__(
        self, whose: str, budget: Budget, cells: memoryview[float], base: int, *, flat: bool = False
    ) -> None:
        self.flat = flat
        self.whose = whose
        self.budget = budget
        self._cells = cells
        self._base = base

    def used(self) -> dict[str, float]:
        """What was used so far."""
        base = self._base
        return dict(zip(FIELDS, self._cells[base : base + WIDTH].tolist(), strict=True))

    def left(self) -> dict[str, float]:
        """What is left of each limit that there is."""
        used = self.used()
        return {name: max(limit - used[name], 0) for name, limit in self.budget.to_json().items()}

    def over(self, field: str) -> BudgetExceededError:
        """The error that says this limit is used up."""
        limit = getattr(self.budget, field)
        what = {"seconds": "s of running time", "gpu_seconds": "s of GPU time"}.get(field, field)
        return BudgetExceededError(
            f"the budget of {self.whose} is used up: {limit:g} {what} were allowed,"
            f" {self.used()[field]:.6g} are used"
        )


def admit(meters: tuple[Meter, ...], cost: float) -> None:
    """Take one call of `cost` from all meters, or from none.

    Raises:
        BudgetExceededError: One of them has not enough left.
    """
    with _lock:
        for meter in meters:
            budget = meter.budget
            if not budget.limited:
                continue
            cells, base = meter._cells, meter._base  # pyright: ignore[reportPrivateUsage]
            calls = 1.0 if meter.flat else cost
            if budget.calls is not None and cells[base] + calls > budget.calls:
                raise meter.over("calls")
            if budget.seconds is not None and cells[base + 1] >= budget.seconds:
                raise meter.over("seconds")
            if budget.gpu_seconds is not None and cells[base + 2] >= budget.gpu_seconds:
                raise meter.over("gpu_seconds")
            if budget.bytes is not None and cells[base + 3] >= budget.bytes:
                raise meter.over("bytes")
        _count(meters, cost, 1.0)


def give_back(meters: tuple[Meter, ...], cost: float) -> None:
    """Undo `admit`, for a call that was never executed."""
    with _lock:
        _count(meters, cost, -1.0)


def _count(meters: tuple[Meter, ...], cost: float, sign: float) -> None:
    for meter in meters:
        calls = sign if meter.flat else sign * cost
        meter._cells[meter._base] += calls  # pyright: ignore[reportPrivateUsage]


def charge(
    meters: tuple[Meter, ...], seconds: float, gpu_seconds: float = 0.0, size: float = 0.0
) -> None:
    """Count what a call has used, beyond what `admit` took."""
    with _lock:
        for meter in meters:
            cells, base = meter._cells, meter._base  # pyright: ignore[reportPrivateUsage]
            cells[base + 1] += seconds
            if gpu_seconds:
                cells[base + 2] += gpu_seconds
            cells[base + 3] += size


def check_bytes(meters: tuple[Meter, ...], size: int) -> None:
    """Refuse to send `size` bytes that some meter has no room for.

    Raises:
        BudgetExceededError: With the first meter that has not enough left.
    """
    for meter in meters:
        limit = meter.budget.bytes
        if limit is None:
            continue
        left = max(limit - meter.used()["bytes"], 0)
        if size > left:
            raise BudgetExceededError(
                f"the budget of {meter.whose} has room for {left:g} bytes more; this call's"
                f" arguments and result have {size}"
            )


def seconds_left(meters: tuple[Meter, ...], *, gpu: bool) -> tuple[float, Meter | None]:
    """How long a call may run before some meter is used up, and which one that is."""
    least, which = float("inf"), None
    for meter in meters:
        budget = meter.budget
        if budget.seconds is None and budget.gpu_seconds is None:
            continue
        left = meter.left()
        names = ("seconds", "gpu_seconds") if gpu else ("seconds",)
        for name in names:
            if name in left and left[name] < least:
                least, which = left[name], meter
    return least, which


class Tally:
    """What one caller uses of one function.

    Where one of the meters has a limit, every call is admitted and counted at once. Where none has,
    nothing depends on the figures, so they are only added up here and passed on now and then.

    Attributes:
        meters: The interface's, the function's and the caller's.
        limited: Whether one of them has a limit; see `look`.
    """

    __slots__ = ("_cost", "calls", "gpu_seconds", "limited", "meters", "seconds", "size")

    def __init__(self, meters: tuple[Meter, Meter, Meter], cost: float) -> None:
        self.meters = meters
        self._cost = cost
        self.calls = 0
        self.seconds = 0.0
        self.gpu_seconds = 0.0
        self.size = 0
        self.limited = False
        self.look()

    def look(self) -> None:
        """Look at the budgets anew, after one was changed."""
        self.limited = any(meter.budget.limited for meter in self.meters)
        self.pass_on()

    def pass_on(self) -> None:
        """Pass on to the meters what was added up."""
        calls, self.calls = self.calls, 0
        seconds, self.seconds = self.seconds, 0.0
        gpu_seconds, self.gpu_seconds = self.gpu_seconds, 0.0
        size, self.size = self.size, 0
        if calls:
            with _lock:
                for meter in self.meters:
                    cells, base = meter._cells, meter._base  # pyright: ignore[reportPrivateUsage]
                    cells[base] += calls if meter.flat else calls * self._cost
            charge(self.meters, seconds, gpu_seconds, size)
