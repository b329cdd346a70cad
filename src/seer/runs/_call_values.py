"""The arguments and the result of a recorded call as Python values."""

import json
from collections.abc import Callable
from typing import Any

from seer.errors import ProtocolError, RecordError
from seer.rpc.values._codec import decode
from seer.runs._calls import GateCall
from seer.runs._reader import Run

_STREAM = '{"stream":'

MakeHandle = Callable[[dict[str, Any]], object]
"""Makes a value from a handle's id, type, dtype and shape; the handle's own value stayed on the
server."""


def is_stream(call: GateCall) -> bool:
    """Whether the function is a generator, whose items came one by one."""
    return call.result.startswith(_STREAM)


def left_out(call: GateCall) -> int:
    """How many items of a stream the record does not have."""
    return int(json.loads(call.result).get("left_out", 0)) if is_stream(call) else 0


def arguments_of(run: Run, call: GateCall) -> Any:
    """The arguments, `[args, kwargs]`; None where the record does not have them.

    Raises:
        RecordError: They cannot be read.
    """
    if call.arguments is None:
        return None
    return _decoded(call.arguments, [run.blob(item) for item in call.argument_buffers])


def result_of(
    run: Run, call: GateCall, *, raw: bool = False, handle: MakeHandle = lambda found: None
) -> Any:
    """The result, or the list of a generator's items; None if the call failed.

    Args:
        run: The run that made the call.
        call: The call.
        raw: As for `seer.rpc.values._codec.decode`.
        handle: Makes the value that stands for a handle.

    Raises:
        RecordError: It cannot be read, or the record lacks items of a stream: those that it has
            may not be at their own positions.
    """
    if missing := left_out(call):
        raise RecordError(f"the record lacks {missing} of the items that it streamed")
    buffers = [run.blob(item) for item in call.result_buffers]
    if not is_stream(call):
        return _decoded(call.result, buffers, raw=raw, handle=handle).get("result")
    rest = iter(buffers)
    items: list[dict[str, Any]] = json.loads(call.result)["stream"]
    return [
        _decoded(
            json.dumps(item["item"]),
            [next(rest) for _ in item.get("buffers", ())],
            raw=raw,
            handle=handle,
        )
        for item in items
    ]


def _decoded(
    text: str,
    buffers: list[bytes],
    *,
    raw: bool = False,
    handle: MakeHandle = lambda found: None,
) -> Any:
    data = text.encode("utf-8", "surrogatepass")
    try:
        return decode(data, buffers, raw=raw, extra={"handle": handle})
    except ProtocolError as error:
        raise RecordError(f"a call of the record cannot be read: {error}") from None
