"""Bounding what one peer can have written down: some each second, and the number of the rest."""

from __future__ import annotations

AT_ONCE = 200
"""Lines that pass one after the other."""
PER_SECOND = 20.0
"""Lines that pass in the long run."""
_TELL = 1.0
"""Seconds between two lines that tell the number of those held back."""


class Flood:
    """Lets lines pass at a bounded rate.

    Attributes:
        held: How many were held back since that was last told.
    """

    __slots__ = ("_room", "_told", "_when", "held")

    def __init__(self) -> None:
        self.held = 0
        self._room = float(AT_ONCE)
        self._when = 0.0
        self._told = 0.0

    def passes(self, now: float) -> bool:
        """Whether one more may be written; if not, it is counted."""
        # A clock that was set back makes no room, and takes none.
        passed = max(now - self._when, 0.0)
        self._room = min(self._room + passed * PER_SECOND, float(AT_ONCE))
        self._when = now
        if self._room < 1.0:
            self.held += 1
            return False
        self._room -= 1.0
        return True

    def is_due(self, now: float) -> bool:
        """Whether it is time to tell how many were held back."""
        if abs(now - self._told) < _TELL:
            return False
        self._told = now
        return True

    def take(self) -> int:
        """How many were held back; they count as told."""
        held, self.held = self.held, 0
        return held
