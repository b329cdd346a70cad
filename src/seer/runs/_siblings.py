"""The runs that one program made: auditor, target and judge, or ten agents at once.

A program runs again as a whole, so all its runs are replayed together. They know each other by
their writer, the process that recorded them.
"""

import json
from collections.abc import Iterable
from typing import Any

from seer.errors import RecordError
from seer.runs._calls import GateCall
from seer.runs._reader import Run


def siblings(run: Run) -> list[Run]:
    """All runs that the program of this one recorded beside it, itself included, oldest first."""
    writer: dict[str, Any] = run.meta.get("writer") or {}
    if writer.get("start") is None:
        return [run]
    # Most files of a folder need not even be parsed.
    mark = json.dumps(writer["start"]).encode()
    found = {run.run_id: run}
    for path in run.folder.parent.glob("*/run.json"):
        try:
            if mark in path.read_bytes():
                other = Run(path.parent)
                if other.meta.get("writer") == writer:
                    found[other.run_id] = other
        except (OSError, RecordError):
            continue  # deleted meanwhile, or damaged: no record to replay from
    return sorted(found.values(), key=lambda item: (item.meta.get("created") or 0.0, item.run_id))


def calls_of(runs: Iterable[Run]) -> list[GateCall]:
    """The calls of several runs. Each of them has those of the user's own script."""
    found: dict[tuple[object, ...], GateCall] = {}
    for run in runs:
        for line in run.calls():
            call = GateCall.from_json(line)
            found[call.interface, call.caller, call.call, call.time, call.key] = call
    return sorted(found.values(), key=lambda call: call.time)


def blob_of_any(runs: Iterable[Run], digest: str) -> bytes:
    """A blob of whichever run has it.

    Raises:
        RecordError: None has.
    """
    error = RecordError(f"no run holds the blob {digest}")
    for run in runs:
        try:
            return run.blob(digest)
        except RecordError as problem:
            error = problem
    raise error
