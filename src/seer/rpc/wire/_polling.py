"""Polling for a moment before a thread sleeps, for clients and gates.

Waking a sleeping core takes longer than a small call does. A caller that waits for its answer polls
for it, and a gate polls for the next request of a caller that it has answered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Events = list[tuple[int, int]]

AWAKE = 0.0001
"""Seconds that a thread polls before it sleeps."""
REST = 8
"""How many waits skip polling after it found nothing. The number doubles each time that polling
finds nothing, and halves each time that it finds something."""
LONGEST_REST = 4096

_monotonic = time.monotonic


class BriefPolling:
    """Polls before each wait, as long as that finds something.

    If nothing comes, the next waits do not poll: where many callers wait, polling takes time from
    those that have work to do.

    Args:
        poll: Returns the events that are there, without waiting.
    """

    __slots__ = ("_naps", "_poll", "_rest")

    def __init__(self, poll: Callable[[], Events]) -> None:
        self._poll = poll
        self._naps = 0
        self._rest = REST

    def events(self) -> Events:
        """Poll for a moment, or not at all, and return the events."""
        if self._naps:
            self._naps -= 1
            return []
        poll = self._poll
        until = _monotonic() + AWAKE
        # By the clock, not by number: if other threads wait for the core, yielding takes a while.
        while _monotonic() < until:
            found = poll()
            if found:
                self._rest = max(self._rest // 2, REST)
                return found
            # If both sides share a core, this lets the other side run.
            os.sched_yield()
        self._naps = self._rest
        self._rest = min(2 * self._rest, LONGEST_REST)
        return []
