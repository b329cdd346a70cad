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
        self.known: dict[str, tuple[str, Reply | bytes]] = {}
        """The function's name and the reply (a plain result as its JSON text) by call's id."""
        self._order: deque[tuple[float, str, int]] = deque()
        self._bytes = 0

    def add(self, call: str, function: str, reply: Reply | bytes, now: float) -> None:
        """Keep `reply` (a plain result as its JSON text); what is too old or too much goes."""
        size = len(reply) if isinstance(reply, bytes) else reply.kept_size
        order = self._order
        if size <= KEEP_BYTES:
            self.known[call] = (function, reply)
            order.append((now, call, size))
            self._bytes += size
        oldest = now - self._seconds
        while order and (
            self._bytes > KEEP_BYTES or len(order) > KEEP_COUNT or order[0][0] < oldest
        ):
            _, old, size = order.popleft()
            self._bytes -= size
            self.known.pop(old, None)

    def get(self, call: str) -> tuple[str, Reply] | None:
        """The function's name and the reply, if it is still kept."""
        found = self.known.get(call)
        if found is None:
            return None
        function, reply = found
        return function, Reply(200, reply) if isinstance(reply, bytes) else reply

    def drop(self, call: str) -> None:
        """Forget a reply (its place in the order goes with its age)."""
        self.known.pop(call, None)
