"""Exposed functions as the server runs them: the schema's function, its meter and its lane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

from seer.rpc.interface._budget import Budget, Meter

from ._lanes import MAX_TASKS, MAX_THREADS
from ._shared import FIRST_FUNCTION, Shared

if TYPE_CHECKING:
    from seer.rpc.interface._expose import Options
    from seer.rpc.interface._schema import Function


@dataclass(slots=True, eq=False)
class Entry:
    """One function that can be called.

    Args:
        call_timeout: Seconds that one call may run if `options` has no timeout.

    Attributes:
        name: Its name.
        function: Its schema; None for fetching handles, which the gate itself does.
        target: The callable.
        bind: Checks and converts arguments.
        bind_plain: The same for a caller that sends only JSON.
        options: As in `@expose(...)`.
        meter: Counts what it uses.
        place: Its number in the shared memory.
        lane: `main`, `threads`, `async` or `batch`.
        room: How many of its calls one process runs at a time.
        timeout: Seconds that one call may run; None for no limit.
        returns_handle: Whether its result stays on the server.
        streams: Whether it is a generator.
        runner: The lane that runs its calls; None for the main thread.
        source: The digest of its file, for the record.
    """

    name: str
    target: Callable[..., Any]
    bind: Callable[..., tuple[list[Any], dict[str, Any]]]
    options: Options
    meter: Meter
    function: Function | None = None
    place: int = 0
    source: bytes = b""
    call_timeout: InitVar[float | None] = None
    bind_plain: Callable[..., tuple[list[Any], dict[str, Any]]] = field(init=False)
    lane: str = field(init=False)
    room: int = field(init=False)
    timeout: float | None = field(init=False)
    returns_handle: bool = field(init=False)
    streams: bool = field(init=False)
    runner: Any = field(init=False, default=None)

    def __post_init__(self, call_timeout: float | None) -> None:
        function, options = self.function, self.options
        self.bind_plain = self.bind
        self.timeout = call_timeout if options.timeout is None else options.timeout
        self.returns_handle = function is not None and function.returns.kind == "handle"
        self.streams = function is not None and function.is_generator
        threads = (options.max_concurrency or 1) > 1
        if options.batch > 1 and not threads:
            self.lane, self.room = "batch", options.batch
        elif function is not None and function.is_async:
            self.lane = "async"
            self.room = min(options.max_concurrency or MAX_TASKS, MAX_TASKS)
        elif threads:
            self.lane, self.room = "threads", min(options.max_concurrency or 1, MAX_THREADS)
        else:
            self.lane, self.room = "main", 1


def make_entries(
    functions: Mapping[str, Function],
    *,
    source: str,
    budget_of: Callable[[Function], Budget],
    shared: Shared,
    places: dict[str, int],
    call_timeout: float | None,
    target: Callable[..., Any] | None = None,
) -> dict[str, Entry]:
    """Entries for all functions of an interface.

    Args:
        functions: The functions.
        source: The digest of their file.
        budget_of: Returns the limits of a function.
        shared: Holds the meters.
        places: The number of each function's meter, which stays the same over reloads and restarts.
            New functions are added to it.
        call_timeout: Seconds that a call may run if its function has no `timeout` of its own.
        target: Called instead of every function if copies run them; None if this process does.
    """
    entries: dict[str, Entry] = {}
    for name, function in functions.items():
        place = places.setdefault(name, len(places) + 1)
        base = shared.meter_base(FIRST_FUNCTION + place)
        meter = Meter(f"function {name!r}", budget_of(function), shared.cells, base, flat=True)
        function_target = target or function.target
        assert function_target is not None
        entries[name] = entry = Entry(
            name,
            function_target,
            target or function.binder(plain=False),
            function.options,
            meter,
            function,
            place,
            source.encode(),
            call_timeout,
        )
        if target is None:
            entry.bind_plain = function.binder(plain=True)
    return entries
