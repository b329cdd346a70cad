"""Results of finished calls, kept for a while so that they can be fetched again by id.

An id is remembered for longer than a result can be: one whose result is gone (too large, read out
of memory that was since given back, streamed) is still never executed again.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from ._replies import Reply

KEEP_SECONDS = 600.0
KEEP_BYTES = 64 << 20
"""Of results that are not small."""
KEEP_COUNT = 32768
SMALL = 1024
"""Results up to this size go only when their ids do."""


class Results:
    """One caller's finished calls, bounded in age, number and bytes. Guarded by its lock."""

    __slots__ = ("_bytes", "_large", "_order", "_seconds", "known")

    def __init__(self, seconds: float = KEEP_SECONDS) -> None:
        self._seconds = seconds
        self.known: dict[str, tuple[str, Reply | bytes | None, float]] = {}
        """By call's id: the function's name, the reply (a plain result as its text; None where it
        is not kept any more), and when."""
        self._order: deque[str] = deque()
        self._large: OrderedDict[str, None] = OrderedDict()
        """Ids of the results that are kept and not small, oldest first."""
        self._bytes = 0

    def add(self, call: str, function: str, reply: Reply | bytes | None, now: float) -> None:
        """Keep `reply` (a plain result as its JSON text); what is too much goes, oldest first.

        Args:
            call: The call's id.
            function: The function's name.
            reply: None for one that cannot be given again.
            now: The time (monotonic).
        """
        size = len(reply) if isinstance(reply, bytes) else _size(reply)
        if size > KEEP_BYTES:
            reply, size = None, 0
        self.known[call] = (function, reply, now)
        order = self._order
        order.append(call)
        if size > SMALL:
            self._large[call] = None
            self._bytes += size
            while self._bytes > KEEP_BYTES:
                self.drop(next(iter(self._large)))
        if len(order) > KEEP_COUNT:
            self._forget(order.popleft())

    def expire(self, now: float) -> None:
        """Forget what is too old."""
        order = self._order
        while order and self.known[order[0]][2] < now - self._seconds:
            self._forget(order.popleft())

    def get(self, call: str, now: float) -> tuple[str, Reply | None] | None:
        """The function's name and the reply if it is still kept; None for an unknown id."""
        self.expire(now)
        found = self.known.get(call)
        if found is None:
            return None
        function, reply, _ = found
        return function, Reply(200, reply) if isinstance(reply, bytes) else reply

    def drop(self, call: str) -> None:
        """Let a reply go, and remember that the call was executed."""
        found = self.known.get(call)
        if found is not None:
            function, reply, when = found
            self._uncount(call, reply)
            self.known[call] = (function, None, when)

    def _forget(self, call: str) -> None:
        _, reply, _ = self.known.pop(call)
        self._uncount(call, reply)

    def _uncount(self, call: str, reply: Reply | bytes | None) -> None:
        if call in self._large:
            del self._large[call]
            self._bytes -= _size(reply)


def _size(reply: Reply | bytes | None) -> int:
    if reply is None:
        return 0
    return len(reply) if isinstance(reply, bytes) else reply.kept_size
