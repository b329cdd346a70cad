"""Queues that are fair between callers: a caller that floods waits for itself only."""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    from ._calls import Call


class FairQueue:
    """Jobs of many owners, given out one owner after the other. Safe on any thread.

    Attributes:
        turns: The owners that have jobs, in the order of their turns. To look at only.
        count: How many jobs there are. To look at only.
    """

    __slots__ = ("_lock", "_queues", "count", "turns")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._queues: dict[Hashable, deque[Any]] = {}
        self.turns: deque[Hashable] = deque()
        self.count = 0

    def put(self, owner: Hashable, job: Any) -> None:
        """Add a job at the end of its owner's queue."""
        with self._lock:
            self.count += 1
            queue = self._queues.get(owner)
            if queue is None:
                self._queues[owner] = deque((job,))
                self.turns.append(owner)
            else:
                queue.append(job)

    def put_call(self, call: Call) -> None:
        """Add a call at the end of its caller's queue; `discard` takes it out again."""
        call.queue = self
        self.put(call.owner, call)

    def pop(self) -> Any:
        """The oldest job of the owner whose turn it is, or None."""
        with self._lock:
            if not self.turns:
                return None
            self.count -= 1
            owner = self.turns.popleft()
            queue = self._queues[owner]
            job = queue.popleft()
            if queue:
                self.turns.append(owner)
            else:
                del self._queues[owner]
            return job

    def discard(self, call: Call) -> None:
        """Take out a call that will not run, if it is still here."""
        with self._lock:
            queue = self._queues.get(call.owner)
            if queue is None or call not in queue:
                return
            self.count -= 1
            queue.remove(call)
            if not queue:
                del self._queues[call.owner]
                self.turns.remove(call.owner)
