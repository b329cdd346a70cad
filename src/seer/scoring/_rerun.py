"""Runs recorded calls again on the interfaces that are served now, and compares the results.

A call is sent with the recorded text and arrays. Handles have new ids, so the call that made a
handle runs first.
"""

import json
import re
from collections.abc import Callable
from typing import Any, cast

from seer.errors import ArgumentError, ConfigError, RecordError, SeerError
from seer.rpc.client import Gate, Handle
from seer.runs import GateCall, Run
from seer.runs._call_values import is_stream
from seer.scoring._difference import RecordedHandle, difference, recorded_result
from seer.workspace import Library
from seer.workspace._connect import open_gate

Rerun = Callable[[GateCall, Run], str | None]
"""Runs a recorded call again. Returns the difference in words; None if there is none."""

_ID = re.compile("[0-9a-f]{32}")


def rerun_through(*libraries: Library) -> Rerun:
    """Make a `Rerun` that uses served libraries with the recorded names.

    It can repeat every call that succeeded, including calls with arrays (the run has them), with
    handles that other calls of the run made, and of generators.

    Args:
        libraries: The results of `ScopedSandbox.serve`. Keep their sandboxes running.

    Raises:
        ConfigError: Two have the same name, so a call could be made again on the wrong one.
    """
    names = [library.name for library in libraries]
    if twice := [name for name in names if names.count(name) > 1]:
        reason = "two libraries have this name; verify with one of them at a time"
        raise ConfigError("rerun_through(libraries)", twice[0], reason)
    gates = {library.name: open_gate(library) for library in libraries}

    def rerun(call: GateCall, run: Run) -> str | None:
        gate = gates.get(call.interface)
        if gate is None:
            return f"nothing is served as {call.interface!r}"
        if call.outcome != "ok":
            return f"it failed in the run: {call.outcome}"
        try:
            with gate:
                recorded = recorded_result(run, call)
                return difference(recorded, _Again(gate, run).make(call))
        except RecordError as error:
            return f"it cannot be run again: {error}"
        except SeerError as error:
            return f"failed: {error}"

    return rerun


class _Again:
    """Repeats calls of a run, after the calls that made their handles."""

    def __init__(self, gate: Gate, run: Run) -> None:
        self._gate = gate
        self._run = run
        self._handles: dict[str, Handle] = {}
        """The handles, by their recorded ids."""

    def make(self, call: GateCall) -> Any:
        """Run the call again, and return the new result."""
        if call.arguments is None:
            raise RecordError("its arguments are not in the record")
        text, target = call.arguments, call.handle
        for old in dict.fromkeys(_ID.findall(f"{target} {text}")):
            if (handle := self._handle(old)) is not None:
                text = text.replace(old, handle.reference())
                target = target.replace(old, handle.reference())
        buffers = [self._run.blob(item) for item in call.argument_buffers]
        try:
            return self._send(call, text, buffers, target)
        except ArgumentError:
            # The record does not say which calls came as plain JSON. For those, the function's type
            # hints convert the arguments: text to bytes, lists to arrays.
            args, kwargs = json.loads(text)
            return self._send(call, json.dumps({"args": args, "kwargs": kwargs}), buffers, target)

    def _send(self, call: GateCall, text: str, buffers: list[bytes], target: str) -> Any:
        data = text.encode("utf-8", "surrogatepass")
        streamed = is_stream(call)
        return self._gate.repeat(call.function, data, buffers, handle=target, streamed=streamed)

    def _handle(self, old: str) -> Handle | None:
        """The new handle for a recorded one; None if no call of the run made it."""
        if old not in self._handles:
            maker = next((c for c in self._run.typed_calls() if _makes(c, old)), None)
            if maker is None:
                return None
            before = _handles(recorded_result(self._run, maker))
            now = _handles(self.make(maker))
            self._handles.update(zip((item.id for item in before), now, strict=False))
        return self._handles.get(old)


def _makes(call: GateCall, handle: str) -> bool:
    return call.outcome == "ok" and f'"$seer":"handle","id":"{handle}"' in call.result


def _handles(value: Any) -> list[Any]:
    """The handles in a value, in order."""
    if isinstance(value, Handle | RecordedHandle):
        return [value]
    if isinstance(value, dict):
        value = list(cast("dict[Any, Any]", value).values())
    if isinstance(value, list | tuple):
        return [found for item in cast("list[Any]", value) for found in _handles(item)]
    return []
