"""The last moments of a process that has ended: what it ran, and what that takes of budgets.

Read from what it shared with the supervisor, since it cannot be asked any more.
"""

from __future__ import annotations

import time

from seer.rpc._budget import Budget, Meter, charge

from ._shared import FIRST_CALLER, FIRST_FUNCTION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._shared import Shared


class LastMoments:
    """What a process did when it ended.

    Attributes:
        running: Caller, function, id and start of the calls that ended with it.
    """

    def __init__(self, shared: Shared, places: dict[str, int]) -> None:
        """Read them, before another process writes there.

        Args:
            shared: What the process shared with the supervisor.
            places: The number of each function there.
        """
        names = {place: name for name, place in places.items()}
        self.running: list[tuple[int, str, str, float]] = [
            (caller, names.get(place, "handle.fetch"), call, since)
            for caller, place, call, since in shared.running()
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
        if self.running:
            names = ", ".join(sorted({f"{function}()" for _, function, _, _ in self.running}))
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
        shared = self._shared
        for index, function, _, since in self.running:
            bases = [shared.meter_base(0), shared.meter_base(FIRST_CALLER + index)]
            if function in self._places:
                place = FIRST_FUNCTION + self._places[function]
                bases.append(shared.meter_base(place))
            meters = tuple(Meter("", Budget(), shared.cells, base) for base in bases)
            charge(meters, now - since)
