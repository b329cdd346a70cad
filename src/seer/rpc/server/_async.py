"""The lane of async functions: an event loop on its own thread, made when it is needed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from inspect import isasyncgen
from typing import TYPE_CHECKING, Any

from seer.errors import GateError

from ._calls import DONE, Call
from ._failures import Stopped
from ._lanes import MAX_TASKS, FairQueue
from ._streams import LOOK_AGAIN, Pace

if TYPE_CHECKING:
    from ._execute import Executor


@dataclass(slots=True, eq=False)
class _FunctionQueue:
    """The waiting calls of one function, and how many calls of it run."""

    most: int
    waiting: FairQueue = field(default_factory=FairQueue)
    running: int = 0


class AsyncLane:
    """Runs calls of async functions concurrently."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._tasks: dict[Call, asyncio.Task[None]] = {}
        self._queues: dict[tuple[str, int], _FunctionQueue] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="seer-async", daemon=True).start()

    def submit(self, call: Call) -> None:
        """Start a call, or queue it if too many calls run."""
        call.queue = self
        self._loop.call_soon_threadsafe(self._start, call)

    def discard(self, call: Call) -> None:
        """Forget a call that will not run."""
        for queue in list(self._queues.values()):
            queue.waiting.discard(call)

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
        if call.state == DONE:
            return
        # The bound is part of the key, because a reloaded file may set another one.
        bound = (call.entry.name, call.entry.room)
        queue = self._queues.get(bound)
        if queue is None:
            queue = self._queues[bound] = _FunctionQueue(bound[1])
        queue.waiting.put(call.owner, call)
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Start waiting calls while there is room, one of each function per round."""
        begun = True
        while begun and len(self._tasks) < MAX_TASKS:
            begun = False
            for queue in self._queues.values():
                if len(self._tasks) < MAX_TASKS and queue.running < queue.most:
                    call = queue.waiting.pop()
                    if call is not None:
                        self._begin(call, queue)
                        begun = True

    def _begin(self, call: Call, queue: _FunctionQueue) -> None:
        queue.running += 1
        task = self._tasks[call] = self._loop.create_task(self._run(call))

        def ended(_task: asyncio.Task[None]) -> None:
            del self._tasks[call]
            queue.running -= 1
            self._start_waiting()

        task.add_done_callback(ended)

    async def _run(self, call: Call) -> None:
        """Run one call, as `Executor.run` does on a thread."""
        executor = self._executor
        try:
            bound = executor.start(call, executor.marks.take(), self)
            if bound is None:
                return
            args, kwargs = bound
            value = error = refused = None
            try:
                if call.cause:
                    raise Stopped
                started = call.entry.target(*args, **kwargs)
                if not isasyncgen(started):
                    value = await started
            except BaseException as problem:
                error = _stopped_or(call, problem)
            else:
                if isasyncgen(started):
                    error, refused = await self._stream(call, started)
            executor.settle(call, value, error, refused)
        except Exception as error:
            executor.finish(call, executor.fault(error), time.monotonic())

    async def _stream(
        self, call: Call, items: Any
    ) -> tuple[BaseException | None, GateError | None]:
        """Send the items of a generator, as `Streamer.run` does on a thread."""
        raised: BaseException | None = None
        refused: GateError | None = None
        try:
            async for item in items:
                try:
                    self._executor.streamer.send(call, item)
                    await self._room(call)
                except GateError as error:
                    refused = error
                    break
        except BaseException as error:
            raised = _stopped_or(call, error)
        try:
            await items.aclose()
        except BaseException as error:
            raised = raised or error
        return raised, refused

    async def _room(self, call: Call) -> None:
        pace = Pace(call, self._executor.gate)
        while True:
            if pace.must_wait() is None:
                return
            await asyncio.sleep(LOOK_AGAIN)


def _stopped_or(call: Call, error: BaseException) -> BaseException:
    """What an async function raised; `Stopped` if its task was cancelled to stop the call."""
    cancelled = isinstance(error, asyncio.CancelledError) and call.cause
    return Stopped() if cancelled else error
