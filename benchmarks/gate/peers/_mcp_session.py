"""A blocking wrapper of an MCP client: the session lives in one task, and calls run on its loop.

The loop runs in the calling thread and only during calls, so the measurement contains no thread
hop.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from benchmarks.gate._probe import quantiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    Call = Callable[[Any, str, dict[str, Any]], Any]


class McpSession:
    """See `Client`."""

    def __init__(self, open_client: Callable[[], AbstractAsyncContextManager[Any]], call: Call):
        """Take a client factory, and an async function that calls a tool and returns its value."""
        self._loop = asyncio.new_event_loop()
        self._open = open_client
        self._tool = call
        self._ended = asyncio.Event()
        opened: asyncio.Future[Any] = self._loop.create_future()
        self._holder = self._loop.create_task(self._hold(opened))
        self._client = self._loop.run_until_complete(opened)

    async def _hold(self, opened: asyncio.Future[Any]) -> None:
        # Entered and left in one task, as the SDK's cancel scopes require.
        try:
            async with self._open() as client:
                opened.set_result(client)
                await self._ended.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        return self._loop.run_until_complete(self._tool(self._client, name, arguments))

    def small(self, x: int) -> int:
        """See `Client`."""
        return self._call("small", {"x": x})

    def floats(self, n: int) -> list[float]:
        """See `Client`."""
        return self._call("floats", {"n": n})

    def take(self, values: list[float]) -> float:
        """See `Client`."""
        return self._call("take", {"values": values})

    def fail(self, message: str) -> None:
        """See `Client`."""
        self._call("fail", {"message": message})

    def array(self, nbytes: int, stamp: int) -> Any:
        """Not supported: JSON has no binary arrays."""
        raise TypeError(f"no array of {nbytes} bytes here (stamp {stamp})")

    def fan(self, command: dict[str, Any]) -> dict[str, float]:
        """Keep `clients` calls in flight in this one session for `seconds`."""
        return self._loop.run_until_complete(self._fan(command))

    async def _fan(self, command: dict[str, Any]) -> dict[str, float]:
        samples: list[int] = []
        begin = time.perf_counter_ns()
        end = begin + int(command["seconds"] * 1e9)

        async def caller(number: int) -> None:
            started = time.perf_counter_ns()
            while started < end:
                if await self._tool(self._client, "small", {"x": number}) != number + 1:
                    raise AssertionError(f"small({number}) gave a wrong answer")
                done = time.perf_counter_ns()
                samples.append(done - started)
                started = done

        await asyncio.gather(*(caller(i) for i in range(int(command["clients"]))))
        seconds = (time.perf_counter_ns() - begin) / 1e9
        return {**quantiles(samples), "rate": len(samples) / seconds}

    def close(self) -> None:
        """See `Client`."""
        self._ended.set()
        self._loop.run_until_complete(self._holder)
        self._loop.close()
