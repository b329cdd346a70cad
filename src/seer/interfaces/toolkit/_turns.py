"""A fair lock for a model: one thread at a time runs it, in the order in which they asked.

Hooks on modules, an adapter that is switched off, and the capture of a CUDA graph would affect
every other thread that runs the model. So the main thread and the model's engine take turns.
"""

import threading
from collections import deque
from types import TracebackType


class Turns:
    """A lock that is fair, and that its holder may take again. Use it as a context manager."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[object] = deque()
        self._holder = 0
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        ticket = object()
        with self._changed:
            if self._holder != me:
                self._line.append(ticket)
                try:
                    while self._holder or self._line[0] is not ticket:
                        self._changed.wait()
                finally:
                    # Also where an exception from outside ends the wait.
                    self._line.remove(ticket)
                    self._changed.notify_all()
                self._holder = me
            self._depth += 1

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._holder = 0
                self._changed.notify_all()

    @property
    def wanted(self) -> bool:
        """Whether another thread waits for its turn."""
        return bool(self._line)
