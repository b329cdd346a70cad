"""Results of finished calls, kept for a while so that they can be fetched again by id."""

from __future__ import annotations

from collections import deque

from ._replies import Reply

KEEP_SECONDS = 600.0
KEEP_BYTES = 64 << 20
KEEP_COUNT = 4096


class Results:
    """One caller's finished calls, bounded in age, number and bytes. Guarded by its lock."""

    __slots__ = ("_bytes", "_order", "_seconds", "known")

    def __init__(self, seconds: float = KEEP_SECONDS) -> None:
        self._seconds = seconds
        self.known: dict[str, tuple[str, Reply | bytes, float]] = {}
        """By call's id: the function's name, the reply (a plain result as its text), and when."""
        self._order: deque[str] = deque()
        self._bytes = 0

    def add(self, call: str, function: str, reply: Reply | bytes, now: float) -> None:
        """Keep `reply` (a plain result as its JSON text); what is too much goes, oldest first."""
        size = _size(reply)
        if size > KEEP_BYTES:
            return
        self.known[call] = (function, reply, now)
        self._order.append(call)
        self._bytes += size
        if self._bytes > KEEP_BYTES or len(self._order) > KEEP_COUNT:
            self._shrink()

    def _shrink(self) -> None:
        while self._bytes > KEEP_BYTES or len(self._order) > KEEP_COUNT:
            self.drop(self._order.popleft())

    def expire(self, now: float) -> None:
        """Forget what is too old."""
        order = self._order
        while order:
            found = self.known.get(order[0])
            if found is not None and found[2] >= now - self._seconds:
                return
            self.drop(order.popleft())

    def get(self, call: str, now: float) -> tuple[str, Reply] | None:
        """The function's name and the reply, if it is still kept."""
        self.expire(now)
        found = self.known.get(call)
        if found is None:
            return None
        function, reply, _ = found
        return function, Reply(200, reply) if isinstance(reply, bytes) else reply

    def drop(self, call: str) -> None:
        """Forget a reply. Its id stays in the order until its turn comes."""
        found = self.known.pop(call, None)
        if found is not None:
            self._bytes -= _size(found[1])


def _size(reply: Reply | bytes) -> int:
    return len(reply) if isinstance(reply, bytes) else reply.kept_size
