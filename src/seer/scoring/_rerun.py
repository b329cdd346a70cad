"""Run recorded calls again, against what is served now, and compare what comes.

Numbers are compared with a tolerance, since other hardware rounds differently; texts exactly.
Arrays are recorded by hash apart from the answer, and are not compared here.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from seer.errors import SeerError
from seer.runs import GateCall
from seer.workspace import Library

Rerun = Callable[[GateCall], str | None]
"""Runs a call again. Returns what differs, in words; None if nothing does."""

_TOLERANCE = 1e-3


def rerun_through(*libraries: Library) -> Rerun:
    """Run calls again through served libraries, by the names that the record has for them.

    Args:
        libraries: As `ScopedSandbox.serve` gives them; the caller keeps the sandbox running.
    """
    modules = {library.name: library.connect() for library in libraries}

    def rerun(call: GateCall) -> str | None:
        module = modules.get(call.interface)
        if module is None:
            return f"nothing is served as {call.interface!r}"
        if call.arguments is None or call.argument_buffers:
            return "its arguments are not in the record as plain values"
        args, kwargs = json.loads(call.arguments)
        try:
            value = getattr(module, call.function)(*args, **kwargs)
        except SeerError as error:
            return f"failed: {error}"
        return _compare(json.loads(call.result), value)

    return rerun


def leaves(value: Any) -> Iterator[Any]:
    """The numbers and texts in a value, in order; keys and marks of the wire are none of them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        for key, item in mapping.items():
            if not str(key).startswith("$"):
                yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            yield from leaves(item)
    elif isinstance(value, int | float | str):
        yield value


def _compare(recorded: Any, live: Any) -> str | None:
    before, now = list(leaves(recorded)), list(leaves(live))
    if len(before) != len(now):
        return f"{len(before)} values were recorded, {len(now)} came"
    for old, new in zip(before, now, strict=True):
        if isinstance(old, str) or isinstance(new, str):
            if old != new:
                return f"{str(old)[:80]!r} was recorded, {str(new)[:80]!r} came"
        elif not math.isclose(old, new, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            return f"{old!r} was recorded, {new!r} came"
    return None
