"""The lane of async functions: one event loop on a thread of its own, made when there are any."""

from __future__ import annotations

import asyncio
import threading
import time
from inspect import isasyncgen

from seer.errors import GateError

from ._failures import Stopped
from ._shared import LANES
from ._streams import MAX_UNSENT, STALL, unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ._calls import Call
    from ._execute import Executor
    from ._streams import Streamer

FIRST_LANE = 64
_monotonic = time.monotonic


class AsyncLane:
    """Runs calls of async functions concurrently."""

    def __init__(self, executor: Executor, streamer: Streamer) -> None:
        self._executor = executor
        self._streamer = streamer
        self._lanes = list(range(FIRST_LANE, LANES))
        self._tasks: dict[Call, asyncio.Task[None]] = {}
        self._gates: dict[tuple[str, int], asyncio.Semaphore] = {}
        self._any = asyncio.Semaphore(len(self._lanes))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="seer-async", daemon=True).start()

    def submit(self, call: Call) -> None:
        """Start a call, or queue it where its function is at its bound."""
        self._loop.call_soon_threadsafe(self._start, call)

    def blocking(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        """A plain function that runs an async one on the loop and waits until it has ended."""

        def run(*args: Any, **kwargs: Any) -> Any:
            task: asyncio.Task[Any] | None = None
            ended = threading.Event()

            def start() -> None:
                nonlocal task
                task = self._loop.create_task(function(*args, **kwargs))
                task.add_done_callback(lambda _: ended.set())

            def cancel() -> None:
                if task is not None:
                    task.cancel()

            self._loop.call_soon_threadsafe(start)
            try:
                ended.wait()
            except BaseException:
                self._loop.call_soon_threadsafe(cancel)
                ended.wait()
                raise
            assert task is not None
            return task.result()

        return run

    def interrupt(self, call: Call) -> None:
        """Cancel the call's task."""
        self._loop.call_soon_threadsafe(self._cancel, call)

    def _cancel(self, call: Call) -> None:
        task = self._tasks.get(call)
        if task is not None:
            task.cancel()

    def _start(self, call: Call) -> None:
        task = self._loop.create_task(self._bounded(call))
        self._tasks[call] = task
        task.add_done_callback(lambda _: self._tasks.pop(call, None))

    async def _bounded(self, call: Call) -> None:
        options = call.entry.options
        most = options.max_concurrency or FIRST_LANE
        # A file that was loaded again may say another number.
        bound = (call.entry.name, most)
        gate = self._gates.get(bound)
        if gate is None:
            gate = self._gates[bound] = asyncio.Semaphore(most)
        async with gate, self._any:
            lane = self._lanes.pop()
            try:
                await self._run(call, lane)
            finally:
                self._lanes.append(lane)

    async def _run(self, call: Call, lane: int) -> None:
        executor = self._executor
        if not executor.begin(call, lane, self):
            return
        try:
            args, kwargs = executor.arguments(call)
        except GateError as error:
            executor.finish(call, lane, executor.refusal(error), _monotonic())
            return
        try:
            if call.cause:
                raise Stopped
            started = call.entry.target(*args, **kwargs)
            if isasyncgen(started):
                await self._stream(call, lane, started)
                return
            value = await started
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and call.cause:
                error = Stopped()
            ended = _monotonic()
            executor.finish(call, lane, executor.failure(call, error), ended)
            executor.check_poisoned(error)
            return
        ended = _monotonic()
        executor.complete(call, lane, value, ended)

    async def _stream(self, call: Call, lane: int, items: Any) -> None:
        error: BaseException | None = None
        try:
            async for item in items:
                self._streamer.send(call, item)
                await self._room(call)
        except BaseException as problem:
            cancelled = isinstance(problem, asyncio.CancelledError) and call.cause
            error = Stopped() if cancelled else problem
        try:
            await items.aclose()
        except BaseException as problem:
            error = error or problem
        self._streamer.end(call, lane, error)

    async def _room(self, call: Call) -> None:
        stalled = _monotonic() + STALL
        while call.connections and call.connections[0].unsent > MAX_UNSENT:
            if _monotonic() > stalled:
                raise unread(call)
            await asyncio.sleep(0.005)
