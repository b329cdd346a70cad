"""Calls that wait for a copy: fair between callers, whichever copies their calls can go to.

A call can go to one copy only (its caller's home) or to any. A copy that has room takes the next of
either line: the one whose caller has waited longer for a turn. So a caller that floods one line
waits for itself, and does not push back those in the other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from seer.rpc.server._calls import DONE

if TYPE_CHECKING:
    from ._calls import FrontCall, FrontCaller

ANYWHERE = 0
"""The line of calls that any copy can take; the others are named by their copies' numbers."""


class _Line:
    """The calls of one line, one queue for each caller, and whose turn it is."""

    __slots__ = ("queues", "turns")

    def __init__(self) -> None:
        self.queues: dict[FrontCaller, deque[FrontCall]] = {}
        self.turns: deque[FrontCaller] = deque()


class Waiting:
    """The calls that wait for one lane of the copies.

    Attributes:
        room: How many calls of this lane one copy can run at a time.
    """

    def __init__(self) -> None:
        self.room = 1
        self._lines: dict[int, _Line] = {}

    def put(self, line: int, caller: FrontCaller, call: FrontCall) -> None:
        """Add a call at the end of its caller's queue."""
        found = self._lines.get(line)
        if found is None:
            found = self._lines[line] = _Line()
        queue = found.queues.get(caller)
        if queue is None:
            found.queues[caller] = deque((call,))
            found.turns.append(caller)
        else:
            queue.append(call)

    def pop(self, copy: int, *, bound_only: bool = False) -> FrontCall | None:
        """The next call that this copy can take, or None."""
        while True:
            own = self._next(copy)
            other = None if bound_only else self._next(ANYWHERE)
            if own is None and other is None:
                return None
            if own is None or (other is not None and other.turn < own.turn):
                call = self._take(ANYWHERE)
            else:
                call = self._take(copy)
            if call.state != DONE:
                return call

    def discard(self, caller: FrontCaller, call: FrontCall) -> None:
        """Take out a call that will not run, if it is here."""
        for number, line in list(self._lines.items()):
            queue = line.queues.get(caller)
            if queue is None or call not in queue:
                continue
            queue.remove(call)
            if not queue:
                del line.queues[caller]
                line.turns.remove(caller)
                if not line.queues:
                    del self._lines[number]

    def empty(self, line: int) -> list[FrontCall]:
        """Take all calls of a line, those of each caller in their order."""
        found = self._lines.pop(line, None)
        if found is None:
            return []
        return [call for queue in found.queues.values() for call in queue if call.state != DONE]

    def _next(self, line: int) -> FrontCaller | None:
        found = self._lines.get(line)
        return found.turns[0] if found is not None and found.turns else None

    def _take(self, line: int) -> FrontCall:
        found = self._lines[line]
        caller = found.turns.popleft()
        queue = found.queues[caller]
        call = queue.popleft()
        if queue:
            found.turns.append(caller)
        else:
            del found.queues[caller]
            if not found.queues:
                del self._lines[line]
        return call
