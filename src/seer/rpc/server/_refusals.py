"""The lines of a record for requests that were refused, with a bound for each caller."""

from __future__ import annotations

import json
import time

BURST = 200
"""Refused requests of one caller that are recorded in a row."""
PER_SECOND = 20.0
"""Refused requests of one caller that are recorded each second in the long run."""
_SUMMARY_EVERY = 1.0
"""Seconds between two lines with the number of requests that were not recorded."""
_CALLERS = 4096


class Refusals:
    """Makes the lines. In a flood, some requests get a line, and the rest are counted."""

    def __init__(self) -> None:
        self._limits: dict[str, _RateLimit] = {}

    def line(
        self, caller: str, path: str, kind: str, message: str, *, tool_call: str = ""
    ) -> bytes:
        """The line for a refused request; empty if it is only counted for now."""
        now = time.time()
        if len(self._limits) > _CALLERS:
            # Forget callers that have nothing held back; they get a new limit.
            self._limits = {name: limit for name, limit in self._limits.items() if limit.held}
        limit = self._limits.setdefault(caller, _RateLimit())
        if limit.passes(now):
            return _line(caller, path, kind, message, now, tool_call)
        return _summary(caller, limit, now) if limit.is_due(now) else b""

    def rest(self) -> list[tuple[str, bytes]]:
        """For each caller with requests that were only counted until now: a line with the count."""
        now = time.time()
        counted = [(caller, limit) for caller, limit in list(self._limits.items()) if limit.held]
        return [(caller, _summary(caller, limit, now)) for caller, limit in counted]


def _line(
    caller: str, path: str, kind: str, message: str, when: float, tool_call: str = ""
) -> bytes:
    line: dict[str, object] = {
        "time": when,
        "caller": caller,
        "request": path,
        "outcome": kind,
        "error": message[:2000],
        "refused": True,
    }
    if tool_call:
        line["tool_call"] = tool_call
    return json.dumps(line).encode() + b"\n"


def _summary(caller: str, limit: _RateLimit, when: float) -> bytes:
    words = f"{limit.take()} more requests were refused, too many to record each of them"
    return _line(caller, "", "ProtocolError", words, when)


class _RateLimit:
    """Bounds the lines about refused requests of one caller (a token bucket), and counts the rest.

    Attributes:
        held: How many requests were not recorded since the last line with their number.
    """

    __slots__ = ("_room", "_told", "_when", "held")

    def __init__(self) -> None:
        self.held = 0
        self._room = float(BURST)
        self._when = 0.0
        self._told = 0.0

    def passes(self, now: float) -> bool:
        """Whether one more line may be written; if not, the request is counted."""
        # A clock that was set back neither adds room nor removes it.
        passed = max(now - self._when, 0.0)
        self._room = min(self._room + passed * PER_SECOND, float(BURST))
        self._when = now
        if self._room < 1.0:
            self.held += 1
            return False
        self._room -= 1.0
        return True

    def is_due(self, now: float) -> bool:
        """Whether it is time for a line with the number of requests that were not recorded."""
        if abs(now - self._told) < _SUMMARY_EVERY:
            return False
        self._told = now
        return True

    def take(self) -> int:
        """The number of requests that were not recorded; the count begins again."""
        held, self.held = self.held, 0
        return held
