"""Chooses which recorded interface a replayed one repeats, if a program served several of one name.

Tasks that each serve an interface of that name do so in another order each time. So the choice is
made at the first call, by the caller and the call. The order decides only between equal fits.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seer.runs._calls import GateCall
from seer.runs.replay._differences import SharedRest
from seer.runs.replay._match import FirstCall, Tapes


@dataclass(frozen=True)
class Recorded:
    """One recorded interface."""

    about: Mapping[str, Any]
    calls: Sequence[GateCall]


@dataclass
class Choices:
    """Which recorded interfaces of one name were chosen in this process, and which may still be."""

    served: int = 0
    """How many interfaces this process has served."""
    chosen: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """The chosen numbers, each after the number of its replay."""
    open: int = 0
    """How many interfaces are served now."""
    overlapped: bool = False
    """Whether several were served at the same time."""
    rest: SharedRest | None = None
    """For a record of an older version, which does not number them: which calls none made."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Choice:
    """The choice for one replayed interface.

    Args:
        recorded: The recorded interfaces of its name, by number.
        preferred: The number of the one in its place.
        replay: Which replay in this process it belongs to; each chooses each number once.
        is_exact: Whether the recording had one in its place.
        choices: The choices for its name.
    """

    def __init__(
        self,
        recorded: Mapping[int, Recorded],
        preferred: int,
        *,
        replay: int,
        is_exact: bool,
        choices: Choices,
    ) -> None:
        self._recorded = recorded
        self._number = preferred
        self._replay = replay
        self._is_exact = is_exact
        self._choices = choices
        self._is_open = True
        with choices.lock:
            choices.open += 1
            choices.overlapped |= choices.open > 1

    @property
    def about(self) -> Mapping[str, Any]:
        """The description of the chosen interface; before the choice, of the one in its place."""
        return self._recorded[self._number].about

    def choose(self, opened: Sequence[str], caller: str, first: FirstCall | None) -> Tapes:
        """The recorded calls for this interface.

        Args:
            opened: The callers that the interface has.
            caller: The one that makes the first call.
            first: That call; None at the end, if none was made.
        """
        choices = self._choices
        with choices.lock:
            free = [n for n in self._recorded if (self._replay, n) not in choices.chosen]
            if first is None and (choices.overlapped or self._number not in free):
                return Tapes(())  # whose calls it did not make is not known
            if len(free) > 1 or (free and self._number not in free):
                self._number = self._best(free, opened, caller, first)
            # Another interface may still need the one that this one did not use.
            if first is not None and self._is_exact:
                choices.chosen.add((self._replay, self._number))
        return Tapes(self._recorded[self._number].calls)

    def close(self) -> None:
        """Note that it is served no more. Calling it again is harmless."""
        with self._choices.lock:
            self._choices.open -= self._is_open
            self._is_open = False

    def _best(
        self, free: Sequence[int], opened: Sequence[str], caller: str, first: FirstCall | None
    ) -> int:
        def misfit(number: int) -> tuple[int, bool, int, bool, int]:
            tapes = Tapes(self._recorded[number].calls)
            others = 0
            # Callers that made no calls are not recorded, so this is a weak sign. It is not needed
            # where the order is certain.
            if self._choices.overlapped:
                others = sum(tapes.misfit(name) for name in opened if name != caller)
            expected = first is None or tapes.expects(opened, caller, first)
            return tapes.misfit(caller), not expected, others, number != self._number, number

        return min(free, key=misfit)
