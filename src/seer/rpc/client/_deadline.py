"""Deadlines for calls, as a context manager."""

from __future__ import annotations

import time
from _contextvars import ContextVar

_until: ContextVar[float] = ContextVar("seer_deadline", default=0.0)


class deadline:
    """Calls inside the block end at the latest `seconds` after it was entered.

    An inner deadline can only shorten an outer one.

    Args:
        seconds: The time allowed.

    Raises:
        ValueError: It is not a positive number of seconds.
    """

    def __init__(self, seconds: float) -> None:
        if not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"deadline({seconds!r}): it must be a number of seconds above 0")
        self._seconds = seconds

    def __enter__(self) -> None:
        until = time.monotonic() + self._seconds
        outer = _until.get()
        try:
            self._token = _until.set(min(until, outer) if outer else until)
        except BaseException:
            # An interrupt just now: the block is not entered, so nothing would reset it.
            _until.set(outer)
            raise

    def __exit__(self, *_: object) -> None:
        _until.reset(self._token)


current = _until.get
"""The deadline of calls made here (monotonic); 0 for none."""
