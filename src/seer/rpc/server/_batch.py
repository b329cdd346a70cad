"""Batching: concurrent calls of many callers become one call of a function written over lists.

Calls gather until there are `batch` of them, the oldest has waited for `batch_wait`, or nobody is
left who could join (a connection carries one call at a time); meanwhile the main thread is free for
others. Those that agree in all shared arguments run together. Each has its own result, error,
deadline and share of the time.
"""

from __future__ import annotations

import time

from seer.errors import GateError, ResultError
from seer.rpc._values import encode

from ._calls import DONE
from ._failures import Stopped
from ._lanes import MAIN_LANE
from ._queue import FairQueue
from ._stopping import stop_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._calls import Call
    from ._entries import Entry
    from ._execute import Executor
    from ._lanes import MainLane
    from ._replies import Reply

_monotonic = time.monotonic


class Gather:
    """Collects the calls of one function.

    Args:
        entry: The function.
        executor: For what all lanes share.
        lane: The main thread's.
        ready: Queues this object for the main thread, which then calls `run`.
    """

    def __init__(
        self, entry: Entry, executor: Executor, lane: MainLane, ready: Callable[[Gather], None]
    ) -> None:
        self._entry = entry
        self._executor = executor
        self._lane = lane
        self._ready = ready
        self._queue = FairQueue()
        self._count = 0
        self._queued = False
        self._running = False
        self._due = float("inf")
        function = entry.function
        assert function is not None
        self._defaults = function.item_defaults
        self._batched = {p.name for p in function.parameters if p.batched}
        self._names = [
            p.name
            for p in function.parameters
            if p.kind in ("positional_only", "positional_or_keyword")
        ]
        self._positional_only = [p.name for p in function.parameters if p.kind == "positional_only"]

    @property
    def idle(self) -> bool:
        """Whether no call waits here or runs."""
        return not (self._count or self._queued or self._running)

    def submit(self, call: Call) -> None:
        """Add a call; on the leading thread."""
        self._queue.put(call.owner, call)
        self._count += 1
        options = self._entry.options
        if self._count >= options.batch or options.batch_wait <= 0 or self._is_complete():
            self._go()
        elif self._count == 1:
            self._due = _monotonic() + options.batch_wait
            self._executor.gate.loop.wake_at = min(self._executor.gate.loop.wake_at, self._due)

    def due(self, now: float) -> float:
        """Go if the oldest call has waited long enough; else say when. On the leading thread."""
        if now < self._due:
            return self._due
        self._go()
        return float("inf")

    def _is_complete(self) -> bool:
        """Whether waiting is in vain, since every open connection has a call that is not answered.

        While a batch runs, those in it will be back soon and may want to join the next.
        """
        if self._running:
            return False
        callers = tuple(self._executor.gate.callers.values())
        return all(one.busy for caller in callers for one in tuple(caller.connections))

    def _go(self) -> None:
        self._due = float("inf")
        if not self._queued:
            self._queued = True
            self._ready(self)

    def run(self) -> None:
        """Run one batch; on the main thread."""
        self._queued = False
        calls: list[Call] = []
        while len(calls) < self._entry.options.batch:
            call = self._queue.pop()
            if call is None:
                break
            self._count -= 1
            calls.append(call)
        if self._count > 0:
            # Who is left has waited already: the next batch goes as soon as it is its turn.
            self._go()
        self._running = True
        try:
            for group in self._groups(calls):
                group.run()
        finally:
            self._running = False
        if self._count and self._is_complete():
            self._go()

    def _groups(self, calls: list[Call]) -> list[Batch]:
        groups: dict[Any, Batch] = {}
        for call in calls:
            # The lane's place in shared memory is the batch's, noted when it runs.
            if not self._executor.begin(call, MAIN_LANE, None):
                continue
            try:
                args, kwargs = self._executor.arguments(call)
            except GateError as error:
                self._executor.finish(call, MAIN_LANE, self._executor.refusal(error), _monotonic())
                continue
            given = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
            shared = {k: v for k, v in given.items() if k not in self._batched}
            key = (frozenset(given), _key(shared, call))
            batch = groups.get(key)
            if batch is None:
                batch = groups[key] = Batch(
                    self._entry, self._executor, self._lane, shared, self._positional_only
                )
            call.runner = batch
            batch.add(call, {k: v for k, v in given.items() if k in self._batched})
        return list(groups.values())


def _key(shared: dict[str, Any], call: Call) -> Any:
    """Equal for calls that may run together. Arrays and the like never do: comparing them costs."""
    if not shared:
        return b""
    buffers: list[Any] = []
    try:
        text = encode([[name, shared[name]] for name in sorted(shared)], buffers)
    except GateError:
        return call
    return call if buffers else text


class Batch:
    """Calls that run together. It is what interrupts them, one by one or all at once."""

    def __init__(
        self,
        entry: Entry,
        executor: Executor,
        lane: MainLane,
        shared: dict[str, Any],
        positional_only: list[str],
    ) -> None:
        self._entry = entry
        self._executor = executor
        self._lane = lane
        self._shared = shared
        self._positional_only = positional_only
        self._calls: list[Call] = []
        self._items: list[dict[str, Any]] = []

    def add(self, call: Call, items: dict[str, Any]) -> None:
        """Add a call with its arguments for the batched parameters."""
        self._calls.append(call)
        self._items.append(items)

    def interrupt(self, call: Call) -> None:
        """Answer one call at once; stop the function if it was the last that anybody waits for."""
        reply = self._executor.refusal(stop_error(call, _monotonic()))
        self._executor.settle(call, reply, _monotonic(), 0.0)
        if all(c.state == DONE or c.cause for c in self._calls):
            self._lane.interrupt(self)

    def run(self) -> None:
        """Call the function once and give each call its part of the result."""
        executor, calls = self._executor, self._calls
        first = calls[0]
        executor.shared.begin(MAIN_LANE, first.place, first.id, _monotonic())
        latest = max(call.expires for call in calls)
        if latest != float("inf"):
            executor.shared.kill_after(MAIN_LANE, latest + executor.grace)
        arguments: dict[str, Any] = dict(self._shared)
        for name in self._items[0]:
            arguments[name] = [item[name] for item in self._items]
        args = [arguments.pop(name) for name in self._positional_only]
        started = _monotonic()
        error: BaseException | None = None
        values: list[Any] = []
        try:
            try:
                self._lane.enter(self)
                if all(call.cause for call in calls):
                    raise Stopped
                result = self._entry.target(*args, **arguments)
                self._lane.leave(self)
                values = self._check(result)
            except BaseException as problem:
                self._lane.leave(self)
                error = problem
        except Stopped as stopped:
            error = stopped
        ended = _monotonic()
        executor.shared.end(MAIN_LANE)
        share = (ended - started) / len(calls)
        for i, call in enumerate(calls):
            call.batch = len(calls)
            if call.state == DONE:
                continue
            executor.settle(call, self._reply(call, error, values, i), ended, share)
        if error is not None:
            executor.check_poisoned(error)

    def _check(self, result: Any) -> list[Any]:
        count = len(self._calls)
        values: list[Any] | None
        try:
            values = None if type(result) in (str, bytes, dict) else list(result)
        except TypeError:
            values = None
        if values is None or len(values) != count:
            came = type(result).__name__ if values is None else f"{len(values)} results"
            raise ResultError(
                f"{self._entry.name}() got a batch of {count} calls and must return a list of"
                f" {count} results, one for each; it returned {came}"
            )
        return values

    def _reply(
        self, call: Call, error: BaseException | None, values: list[Any], index: int
    ) -> Reply:
        executor = self._executor
        if call.cause:
            return executor.refusal(stop_error(call, _monotonic()))
        if error is None:
            value = values[index]
            if isinstance(value, Exception):
                return executor.failure(call, value)
            return executor.result(call, value)
        if isinstance(error, ResultError):
            return executor.refusal(error)
        return executor.failure(call, error)
