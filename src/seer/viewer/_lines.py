"""Lines of a record for the page, small enough that it can hold thousands of them.

A line keeps its form on disk (references to blobs, escaped `$` keys; see `Run.lines`). A value that
is still too long is cut to `{"$cut": <the beginning>, "count": n}`; the page requests the whole
line when the user wants to see it. The vendor's own message (`raw`) is left out too.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal, cast

from seer.runs import Run
from seer.viewer._render import plain_line

LineKind = Literal["events", "calls"]
LINE_KINDS: tuple[LineKind, ...] = ("events", "calls")

WHOLE = 64 * 1024
"""Lines of up to this many characters are passed on as they are."""
_ITEMS = 64
_DEPTH = 12
_TEXT = 8 * 1024


def described(run: Run) -> dict[str, Any]:
    """The content of `run.json`, with the run's present status and a title."""
    info = run.info
    title = plain_line(info.name or info.task)
    return {**info.to_json(), "status": info.status_now, "title": title}


def slim(body: Mapping[str, Any], length: int) -> dict[str, Any]:
    """A line without the parts that the page does not show at first."""
    slimmed = {key: value for key, value in body.items() if key != "raw"}
    if "raw" in body:
        slimmed["$raw"] = True
    if length <= WHOLE or len(json.dumps(slimmed)) <= WHOLE:
        return slimmed
    return {key: _cut(value, _DEPTH) for key, value in slimmed.items()}


def _cut(value: Any, depth: int) -> Any:
    if isinstance(value, str) and len(value) > _TEXT:
        return {"$cut": value[:_TEXT], "count": len(value)}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if depth == 0 or len(items) > _ITEMS:
            kept = [] if depth == 0 else [_cut(item, depth - 1) for item in items[:_ITEMS]]
            return {"$cut": kept, "count": len(items)}
        return [_cut(item, depth - 1) for item in items]
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        if depth == 0 or len(mapping) > _ITEMS:
            names = [] if depth == 0 else list(mapping)[:_ITEMS]
            return {
                "$cut": {name: _cut(mapping[name], depth - 1) for name in names},
                "count": len(mapping),
            }
        return {key: _cut(item, depth - 1) for key, item in mapping.items()}
    return value
