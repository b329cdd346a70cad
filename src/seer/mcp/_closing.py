"""How MCP servers over pipes and over HTTP are closed."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable

from seer._sync import run_on


class ClosableServer(abc.ABC):
    """A server that closes other things too, and can be closed from any event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closers: list[Callable[[], Awaitable[None]]] = []

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Call `closer` after the server is closed; closers run in the order of these calls."""
        self._closers.append(closer)

    async def close(self) -> None:
        """Close the server and end its clients' connections, from any event loop.

        Closing twice is harmless.
        """
        await run_on(self._loop, self._close_all())

    async def _close_all(self) -> None:
        await self._close()
        while self._closers:
            await self._closers.pop(0)()

    @abc.abstractmethod
    async def _close(self) -> None:
        """Close the server itself, on the event loop that opened it."""
