"""Batching: concurrent calls of many callers become one call of a function written over lists.

Calls gather until there are `batch` of them, until the oldest has waited for `batch_wait`, or until
every open connection has a call in progress, so that no other call can join. The main thread runs
other calls meanwhile. Calls that agree in all shared arguments run together. Each has its own
result, error, deadline and share of the time. If the function raises, it is called again for each
call alone, so that no caller gets an error that another caller's arguments caused and that may
quote them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seer.errors import GateError, ResultError
from seer.rpc.values._codec import encode

from ._failures import Stopped
from ._lanes import FairQueue, MainLane
from ._shared import MAIN_MARK

if TYPE_CHECKING:
    from ._calls import Call
    from ._entries import Entry
    from ._execute import Executor

_monotonic = time.monotonic


class Gather:
    """Collects the calls of one function.

    Args:
        entry: The function.
        executor: Begins and settles the calls.
        lane: The main thread's lane.
        ready: Queues this object for the main thread, which then calls `run`.
    """

    def __init__(
        self,
        entry: Entry,
        executor: Executor,
        lane: MainLane,
        ready: Callable[[Gather], None],
    ) -> None:
        self._entry = entry
        self._executor = executor
        self._lane = lane
        self._ready = ready
        self._queue = FairQueue()
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
        return not (self._queue.count or self._queued or self._running)

    def submit(self, call: Call) -> None:
        """Add a call; on the leading thread."""
        self._queue.put_call(call)
        options = self._entry.options
        count = self._queue.count
        if count >= options.batch or options.batch_wait <= 0 or self._is_complete():
            self._go()
        elif count == 1:
            self._due = _monotonic() + options.batch_wait
            self._executor.gate.loop.wake_by(self._due)

    def due(self, now: float) -> float:
        """Queue a batch if the oldest call has waited long enough; on the leading thread.

        Returns:
            When to check again (monotonic).
        """
        if now < self._due:
            return self._due
        self._go()
        return float("inf")

    def _is_complete(self) -> bool:
        """Whether no further call can join, because every open connection has one in progress.

        While a batch runs, its callers may soon call again and join the next batch.
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
            calls.append(call)
        if self._queue.count > 0:
            # The remaining calls have waited already, so their batch is queued at once.
            self._go()
        self._running = True
        try:
            for group in self._groups(calls):
                group.run()
        finally:
            self._running = False
        if self._queue.count and self._is_complete():
            self._go()

    def _groups(self, calls: list[Call]) -> list[Batch]:
        executor = self._executor
        groups: dict[Any, Batch] = {}
        for call in calls:
            executor.watch(call, MAIN_MARK, _monotonic())
            try:
                args, kwargs = executor.arguments(call)
            except GateError as error:
                if executor.begin(call, MAIN_MARK, None):
                    executor.settle(call, refused=error)
                continue
            finally:
                executor.shared.end(MAIN_MARK)
            given = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
            shared = {k: v for k, v in given.items() if k not in self._batched}
            key = (frozenset(given), _key(shared, call))
            batch = groups.get(key)
            if batch is None:
                batch = groups[key] = Batch(
                    self._entry,
                    executor,
                    self._lane,
                    shared=shared,
                    positional_only=self._positional_only,
                )
            batch.add(call, {k: v for k, v in given.items() if k in self._batched})
        return list(groups.values())


def one_by_one(entry: Entry) -> Callable[..., Any]:
    """A function for single calls that calls a batched one with lists of one item."""
    function, target = entry.function, entry.target
    assert function is not None
    only = sum(p.kind == "positional_only" for p in function.parameters)
    names = [p.name for p in function.parameters if p.kind != "keyword_only"]
    batched = {p.name for p in function.parameters if p.batched}

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**function.item_defaults, **dict(zip(names, args, strict=False)), **kwargs}
        lists = {name: [value] if name in batched else value for name, value in given.items()}
        values = checked(entry, target(*map(lists.pop, names[:only]), **lists), 1)
        if isinstance(values[0], Exception):
            raise values[0]
        return values[0]

    return run


def checked(entry: Entry, result: Any, count: int) -> list[Any]:
    """The results of a batched function.

    Raises:
        ResultError: The function did not return a list with one result for each call.
    """
    values: list[Any] | None
    try:
        values = None if type(result) in (str, bytes, dict) else list(result)
    except TypeError:
        values = None
    if values is None or len(values) != count:
        came = type(result).__name__ if values is None else f"{len(values)} results"
        raise ResultError(
            f"{entry.name}() got a batch of {count} calls and must return a list of"
            f" {count} results, one for each; it returned {came}"
        )
    return values


def _key(shared: dict[str, Any], call: Call) -> Any:
    """A key that is equal for calls that may run together.

    Comparing arrays would be slow, so a call that shares one runs alone.
    """
    if not shared:
        return b""
    buffers: list[Any] = []
    try:
        text = encode([[name, shared[name]] for name in sorted(shared)], buffers)
    except GateError:
        return call
    return call if buffers else text


class Batch:
    """Calls that run together. It interrupts them, one by one or all at once.

    Args:
        entry: The function.
        executor: Begins and settles the calls.
        lane: The main thread's lane.
        shared: The arguments that all calls have in common.
        positional_only: The names of the parameters that take no keyword.
    """

    def __init__(
        self,
        entry: Entry,
        executor: Executor,
        lane: MainLane,
        *,
        shared: dict[str, Any],
        positional_only: list[str],
    ) -> None:
        self._entry = entry
        self._executor = executor
        self._lane = lane
        self._shared = shared
        self._positional_only = positional_only
        self._items: dict[Call, dict[str, Any]] = {}
        self._together: list[Call] = []
        """The calls that the function runs for at the moment."""

    @property
    def cause(self) -> str:
        """Why the function must stop; empty unless all calls that it runs for must stop."""
        causes = [call.cause for call in self._together]
        return causes[0] if causes and all(causes) else ""

    def add(self, call: Call, items: dict[str, Any]) -> None:
        """Add a call with its arguments for the batched parameters."""
        self._items[call] = items

    def interrupt(self, call: Call) -> None:
        """Stop the function if all its calls must stop; otherwise answer this call at once."""
        if self.cause:
            self._lane.interrupt(self)
        else:
            # The function runs on for the others, so it does not block this caller's next call.
            call.blocks = False
            call.detach_at = _monotonic()

    def run(self) -> None:
        """Call the function for all calls; if that fails, call it for each one alone."""
        calls = self._begin()
        if not calls:
            return
        started = _monotonic()
        values, error = self._call(calls)
        share = (_monotonic() - started) / len(calls)
        if len(calls) == 1 or error is None or isinstance(error, Stopped):
            for index, call in enumerate(calls):
                self._settle(call, values[index] if values else None, error, share)
            return
        self._executor.check_poisoned(error)
        del error
        for call in calls:
            self._wait_alone(call, started)
        for call in calls:
            self._run_alone(call, share)

    def _begin(self) -> list[Call]:
        """Mark the calls as running, and return those that may run."""
        executor = self._executor
        # Set before the calls begin: a call that is stopped meanwhile is found here, or never
        # begins.
        self._together = list(self._items)
        count = len(self._items)
        calls = [
            call
            for call in self._items
            if executor.begin(call, executor.marks.try_take(), self, count)
        ]
        for call in calls:
            call.batch = len(calls)
        self._together = calls
        return calls

    def _wait_alone(self, call: Call, since: float) -> None:
        """Let a call wait for its own turn; it is not charged for the turns of the others."""
        call.wait_alone()
        if call.mark >= 0:
            shared = self._executor.shared
            shared.go_on(call.mark, since=since, kill_at=0.0, shared_by=call.batch)

    def _run_alone(self, call: Call, before: float) -> None:
        """Call the function for one call after it failed for several.

        Args:
            call: The call.
            before: Its share of the seconds of the failed attempt.
        """
        self._together = [call]
        started = _monotonic()
        values: list[Any] = []
        error: BaseException | None = Stopped()
        if self._executor.begin_again(call, started, before):
            values, error = self._call([call])
        seconds = before + _monotonic() - started
        self._settle(call, values[0] if values else None, error, seconds)

    def _call(self, calls: list[Call]) -> tuple[list[Any], BaseException | None]:
        """Call the function, and return its results and what it raised."""
        items = [self._items[call] for call in calls]
        arguments: dict[str, Any] = dict(self._shared)
        for name in items[0]:
            arguments[name] = [item[name] for item in items]
        args = [arguments.pop(name) for name in self._positional_only]
        result, error = self._executor.attempt(
            self, self._lane, self._entry.target, args, arguments
        )
        if error is not None:
            return [], error
        try:
            return checked(self._entry, result, len(calls)), None
        except ResultError as problem:
            return [], problem

    def _settle(self, call: Call, value: Any, error: BaseException | None, seconds: float) -> None:
        """End one call with its own result, error or reason to stop."""
        refused = error if isinstance(error, ResultError) else None
        if call.cause:
            error = Stopped()
        elif refused is not None:
            error = None
        elif error is None and isinstance(value, Exception):
            error = value
        self._executor.settle(call, value, error, refused, seconds=seconds)
