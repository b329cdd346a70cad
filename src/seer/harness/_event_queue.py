"""Passes events from the loop on which a run works to the loop on which its consumer waits.

The loops can be in different threads. The producer never blocks in `put`. With `drained`, it waits
until the consumer asks for the next event. So a consumer that stops at a tool call still prevents
that call.
"""

import asyncio
import threading
from collections import deque

from seer.events import Event


class EventQueue:
    """A queue of events with one producing loop and one consumer. Made on the producing loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._closed = False
        self._hungry = False
        self._idle = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._consumer: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def put(self, event: Event) -> None:
        """Add an event and wake the consumer."""
        with self._lock:
            self._events.append(event)
            self._hungry = False
        self._idle.clear()
        self._wake_consumer()

    def close(self) -> None:
        """No more events will come."""
        with self._lock:
            self._closed = True
        self._wake_consumer()

    async def drained(self) -> None:
        """Wait until the consumer has taken every event and asks for the next."""
        await self._idle.wait()

    async def get(self) -> Event | None:
        """The next event; None when there will be none."""
        while True:
            with self._lock:
                if self._events:
                    return self._events.popleft()
                if self._closed:
                    return None
                self._hungry = True
                loop = asyncio.get_running_loop()
                future: asyncio.Future[None] = loop.create_future()
                self._consumer = (loop, future)
            self._loop.call_soon_threadsafe(self._say_idle)
            await future

    def _say_idle(self) -> None:
        with self._lock:
            hungry = self._hungry
        if hungry:  # a `put` may have come in between
            self._idle.set()

    def _wake_consumer(self) -> None:
        with self._lock:
            waiting, self._consumer = self._consumer, None
        if waiting is None:
            return
        loop, future = waiting
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
