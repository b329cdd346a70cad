"""Waiting for the machine to be calm: what others run on it would be measured as well.

Others meet every contestant alike only on average. Where one round falls into a busy minute, what
is starved then is the thread that has the most to do. So each turn begins when the cores are idle,
or when the patience for the whole run is used up; how busy it was is told with the results.
"""

from __future__ import annotations

import time
from pathlib import Path

_LOOK_S = 0.25
_CALM = 0.08
"""Busy share of all cores up to which a machine counts as calm: the servers that wait use some."""


class Calm:
    """Waits for calm moments, at most `patience` seconds in all."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.busy: list[float] = []
        """The share of the cores that was in use when each turn began."""

    def told(self) -> str:
        """How busy it was, in words."""
        calm = sum(share <= _CALM for share in self.busy)
        return f"{calm} of {len(self.busy)} turns began on a calm machine"

    def wait(self) -> None:
        """Return when the machine is calm, or when there is no patience left."""
        while True:
            share = _busy_share()
            if share <= _CALM or self.patience <= 0:
                self.busy.append(share)
                return
            self.patience -= _LOOK_S


def _busy_share() -> float:
    before = _ticks()
    time.sleep(_LOOK_S)
    after = _ticks()
    total = sum(after) - sum(before)
    # The fourth and fifth columns are the idle ones.
    return 1.0 - (after[3] + after[4] - before[3] - before[4]) / total if total else 0.0


def _ticks() -> list[int]:
    line = Path("/proc/stat").read_text().partition("\n")[0]
    return [int(value) for value in line.split()[1:9]]
