"""Exposed functions as the server runs them: the schema's function, its meter and its lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seer.rpc.interface._budget import Budget, Meter

from ._shared import FIRST_FUNCTION, Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from seer.rpc.interface._options import Options
    from seer.rpc.interface._schema import Function


class Entry:
    """One function that can be called.

    Attributes:
        name: Its name.
        function: Its schema; None for fetching a handle, which the gate itself offers.
        target: The callable.
        bind: Checks and converts arguments.
        bind_plain: The same for a caller that sends only JSON.
        options: As in `@expose(...)`.
        meter: Counts what it uses.
        place: Its number in the shared memory.
        lane: `main`, `threads`, `async` or `batch`.
        timeout: Seconds that one call may run; None for no limit.
        returns_handle: Whether its result stays on the server.
        streams: Whether it is a generator.
        runner: The lane that runs its calls; None for the main thread.
        source: The digest of its file, for the record.
    """

    __slots__ = (
        "bind",
        "bind_plain",
        "function",
        "lane",
        "meter",
        "name",
        "options",
        "place",
        "returns_handle",
        "runner",
        "source",
        "streams",
        "target",
        "timeout",
    )

    def __init__(
        self,
        name: str,
        target: Callable[..., Any],
        bind: Callable[..., tuple[list[Any], dict[str, Any]]],
        options: Options,
        meter: Meter,
        function: Function | None = None,
        place: int = 0,
        source: str = "",
        call_timeout: float | None = None,
    ) -> None:
        self.name = name
        self.target = target
        self.bind = self.bind_plain = bind
        self.options = options
        self.meter = meter
        self.function = function
        self.place = place
        self.timeout = call_timeout if options.timeout is None else options.timeout
        self.source = source.encode()
        self.returns_handle = function is not None and function.returns.kind == "handle"
        self.streams = function is not None and function.is_generator
        self.runner: Any = None
        threads = (options.max_concurrency or 1) > 1
        if options.batch > 1 and not threads:
            self.lane = "batch"
        elif function is not None and function.is_async:
            self.lane = "async"
        elif threads:
            self.lane = "threads"
        else:
            self.lane = "main"


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
        budget_of: Gives the limits of a function.
        shared: Holds the meters.
        places: The number of each function's meter. New functions are added to it, and it is kept
            over reloads and restarts.
        call_timeout: Seconds that a call may run if its function has no `timeout` of its own.
        target: Takes the place of all functions if copies run them; None if this process does.
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
            source,
            call_timeout,
        )
        if target is None:
            entry.bind_plain = function.binder(plain=True)
    return entries
