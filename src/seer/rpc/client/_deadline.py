"""Deadlines for calls, as a context manager.

An interrupt (Ctrl-C) may come at any moment, even while a block is entered or left, and must not
leave the block's deadline behind: every later call would fail. So a deadline applies while a lock
is held, and the method that leaves the block is the lock's own. It is C code, which Python cannot
interrupt before it has released the lock.
"""

from __future__ import annotations

import time
from _contextvars import ContextVar
from _thread import allocate_lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable


class _Entered:
    """A block that was entered.

    Attributes:
        until: Its deadline (monotonic), or an outer one that is earlier.
        inside: Held while the block runs.
        before: The block around it.
    """

    __slots__ = ("before", "inside", "until")

    def __init__(self, until: float, inside: LockType, before: _Entered | None) -> None:
        self.until = until
        self.inside = inside
        self.before = before


_entered: ContextVar[_Entered | None] = ContextVar("seer_deadline", default=None)


class deadline:
    """Calls inside the block end at most `seconds` after the block was entered.

    An inner deadline can only shorten an outer one. The deadline does not apply to a task that
    outlives the block, once the block has ended.

    Args:
        seconds: The time allowed.

    Raises:
        ValueError: It is not a positive number of seconds.
    """

    __slots__ = ("__exit__", "_inside", "_seconds")

    __exit__: Callable[..., None]

    def __init__(self, seconds: float) -> None:
        if not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"deadline({seconds!r}): it must be a number of seconds above 0")
        self._seconds = seconds
        self._inside = allocate_lock()
        # Not a method of this class: an interrupt would come before its first line.
        self.__exit__ = self._inside.__exit__

    def __enter__(self) -> None:
        if self._inside.locked():
            raise RuntimeError("the block of this deadline has been entered already")
        outer = current()
        before = _entered.get()
        until = time.monotonic() + self._seconds
        block = _Entered(min(until, outer) if outer else until, self._inside, before)
        try:
            self._inside.acquire()
            _entered.set(block)
        except BaseException:
            # An interrupt just now: the block is not entered, so nothing would leave it.
            if self._inside.locked():
                self._inside.release()
            raise


def current() -> float:
    """The deadline of calls made here (monotonic); 0 for none."""
    found = last = _entered.get()
    while found is not None and not found.inside.locked():
        found = found.before
    if found is not last:
        _entered.set(found)
    return 0.0 if found is None else found.until
