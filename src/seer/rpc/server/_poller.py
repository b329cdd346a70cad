"""An epoll with callbacks, for the supervisor and, as the base of `Loop`, for an interface."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    OnEvents = Callable[[int], object]


class Poller:
    """Watches descriptors and calls a handler for their events.

    Attributes:
        epoll: Watches the descriptors.
        handlers: What to call, by descriptor.
        added: The descriptors that were added since the last poll. A handler may close a
            descriptor and open another one of the same number. An event that was polled before
            belongs to the old one; the next poll reports the events of the new one.
    """

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.handlers: dict[int, OnEvents] = {}
        self.added: set[int] = set()

    def watch(self, fd: int, mask: int, handler: OnEvents) -> None:
        """Call `handler(events)` on the polling thread whenever `fd` has one of `mask`."""
        self.handlers[fd] = handler
        self.added.add(fd)
        self.epoll.register(fd, mask)

    def unwatch(self, fd: int) -> None:
        """Forget `fd`; must be called before it is closed."""
        if self.handlers.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def step(self, timeout: float) -> None:
        """Wait for events for at most `timeout` seconds and handle them."""
        self.added.clear()
        for fd, events in self.epoll.poll(timeout):
            handler = self.handlers.get(fd)
            if handler is None or fd in self.added:
                continue
            try:
                handler(events)
            except Exception:
                # The supervisor must survive its own bugs, because nothing restarts it.
                import traceback

                os.write(2, traceback.format_exc().encode())

    def close(self) -> None:
        """Close the epoll in a forked process."""
        self.epoll.close()
