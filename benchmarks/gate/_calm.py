"""Waits until the machine is idle, because other programs disturb the measurements.

Other load affects all contestants alike only on average. In a busy minute, a single round suffers,
and the thread with the most work suffers most. So each turn begins when the cores are idle, or when
the patience for the whole run is used up. The results say how busy the machine was.
"""

from __future__ import annotations

import time
from pathlib import Path

_LOOK_S = 0.25
_CALM = 0.08
"""The busy share of all cores below which a machine counts as calm; waiting servers use some."""


class Calm:
    """Waits for calm moments, at most `patience` seconds in all."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.busy: list[float] = []
        """The share of the cores that was in use when each turn began."""

    def told(self) -> str:
        """How busy the machine was, in words."""
        calm = sum(share <= _CALM for share in self.busy)
        return f"{calm} of {len(self.busy)} turns began on a calm machine"

    def wait(self) -> None:
        """Return when the machine is calm, or when the patience is used up."""
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
