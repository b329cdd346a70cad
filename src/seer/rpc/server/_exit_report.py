"""The last moments of a process that has ended: what it ran, and what that takes of budgets.

Read from what it shared with the supervisor, since it cannot be asked any more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from seer.rpc.interface._budget import Budget, Meter, Tally

from ._shared import FETCH_METER, FIRST_CALLER, FIRST_FUNCTION

if TYPE_CHECKING:
    from ._shared import Running, Shared


class ExitReport:
    """What a process did when it ended.

    Attributes:
        lost: Caller, function, id and start of the calls that ended with it unanswered.
    """

    def __init__(self, shared: Shared, places: dict[str, int]) -> None:
        """Read them, before another process writes there.

        Args:
            shared: What the process shared with the supervisor.
            places: The number of each function there.
        """
        names = {place: name for name, place in places.items()}
        self._running: list[tuple[Running, str]] = [
            (found, names.get(found.function, "handle.fetch")) for found in shared.running()
        ]
        self.lost: list[tuple[int, str, str, float]] = [
            (found.caller, name, found.call, found.since)
            for found, name in self._running
            if not found.paid
        ]
        self._last = [names[place] for place in shared.last() if place in names]
        self._shared = shared
        self._places = places

    def add_to(self, ended: str, output: str) -> str:
        """How the process ended, with what is known of its last moments.

        Args:
            ended: How it ended.
            output: What it printed last; empty where that must not be told.
        """
        if self._running:
            names = ", ".join(sorted({f"{name}()" for _, name in self._running}))
            ended += f", while it ran {names}"
        elif self._last:
            names = ", ".join(sorted({f"{function}()" for function in self._last}))
            ended += f", during or after a call of {names}"
        if output:
            ended += f"; its last output was:\n{output}"
        return ended

    def charge(self) -> None:
        """Count the time of calls that died with the process."""
        now = time.monotonic()
        for found, name in self._running:
            place = self._places.get(name)
            function = FETCH_METER if place is None else FIRST_FUNCTION + place
            meters = (
                self._meter(0),
                self._meter(function),
                self._meter(FIRST_CALLER + found.caller),
            )
            ran = (now - found.since) / found.shared_by
            Tally(meters, 0).charge(max(ran - found.paid, 0.0))

    def _meter(self, index: int) -> Meter:
        return Meter("", Budget(), self._shared.cells, self._shared.meter_base(index))
