"""How soon, and how often, an interface is started again."""

from __future__ import annotations

MAX_RESTARTS = 5
RESTART_WINDOW = 60.0


class Restarts:
    """The starts of late, and what follows from them."""

    def __init__(self) -> None:
        self._starts: list[float] = []

    def started(self, now: float) -> None:
        """The interface was started."""
        self._starts.append(now)

    def next(self, now: float) -> float | None:
        """When to start it again; None if it was too often of late."""
        self._starts = [when for when in self._starts if when > now - RESTART_WINDOW]
        if len(self._starts) > MAX_RESTARTS:
            return None
        # At once the first time; the more often lately, the later.
        lately = len(self._starts) - 1
        return now + (min(0.1 * 2**lately, 3.0) if lately else 0.0)
