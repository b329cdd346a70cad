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
        function: Its schema, or None for what the gate itself offers (fetching a handle).
        target: What is called.
        bind: Checks and converts arguments.
        bind_plain: The same for a caller that has only JSON.
        options: As in `@expose(...)`.
        meter: Counts what it uses.
        place: Its number, by which the supervisor knows it.
        lane: `main`, `threads`, `async` or `batch`.
        timeout: Seconds that one call may run; None for no limit.
        returns_handle: Whether its result stays on the server.
        runner: What runs its calls, where that is not the main thread.
        source: The digest of the file that it came from, for the record.
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
) -> dict[str, Entry]:
    """Entries for all functions of an interface.

    Args:
        functions: The functions, with their targets.
        source: The digest of their file.
        budget_of: Gives the limits of a function.
        shared: Where meters count.
        places: Numbers of the functions' meters, kept over reloads and restarts; grows here.
        call_timeout: Seconds that a call of a function may run that has no `timeout` of its own.
    """
    entries: dict[str, Entry] = {}
    for name, function in functions.items():
        meter, place = function_meter(function, budget_of(function), shared=shared, places=places)
        assert function.target is not None
        bind = function.binder(plain=False)
        entry = Entry(
            name,
            function.target,
            bind,
            function.options,
            meter,
            function,
            place,
            source,
            call_timeout,
        )
        entry.bind_plain = function.binder(plain=True)
        entries[name] = entry
    return entries


def function_meter(
    function: Function, budget: Budget, *, shared: Shared, places: dict[str, int]
) -> tuple[Meter, int]:
    """The meter of one function, and its place; see `make_entries`."""
    name = function.name
    place = places.setdefault(name, len(places) + 1)
    base = shared.meter_base(FIRST_FUNCTION + place)
    return Meter(f"function {name!r}", budget, shared.cells, base, flat=True), place
