"""Arrays of a run's calls as `.npy` files, for numpy and whatever else reads them.

In the record an array is raw memory in a file named by its hash, and its line says dtype and shape:
so it is written as it came, and once however often it came.
"""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seer.errors import ProtocolError, RecordError
from seer.rpc._values import decode
from seer.runs._calls import GateCall
from seer.runs._reader import Run

_STREAM = '{"stream":'


def export_arrays(run: Run, folder: Path | str) -> list[Path]:
    """Write every array that the run's calls took or gave.

    Args:
        run: The run.
        folder: Where to; made where it is missing. Files are named by the call's number, the
            function, and a number within the call: `0003-activations-result-0.npy`.

    Raises:
        RecordError: A call of the record cannot be read.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for number, line in enumerate(run.calls()):
        call = GateCall.from_json(line)
        function = re.sub(r"\W", "_", call.function)
        for side, values in (("argument", _arguments(run, call)), ("result", _results(run, call))):
            for index, array in enumerate(_arrays(values)):
                path = target / f"{number:04}-{function}-{side}-{index}.npy"
                path.write_bytes(_npy(array))
                written.append(path)
    return written


def _arguments(run: Run, call: GateCall) -> Any:
    if call.arguments is None or not call.argument_buffers:
        return None
    return _decoded(call.arguments, [run.blob(item) for item in call.argument_buffers])


def _results(run: Run, call: GateCall) -> Any:
    if not call.result_buffers:
        return None
    buffers = [run.blob(item) for item in call.result_buffers]
    if not call.result.startswith(_STREAM):
        return _decoded(call.result, buffers)
    rest = iter(buffers)
    items: list[dict[str, Any]] = json.loads(call.result)["stream"]
    return [
        _decoded(json.dumps(item["item"]), [next(rest) for _ in item.get("buffers", ())])
        for item in items
    ]


def _decoded(text: str, buffers: list[bytes]) -> Any:
    try:
        return decode(text.encode("utf-8", "surrogatepass"), buffers, extra={"handle": _no_value})
    except ProtocolError as error:
        raise RecordError(f"a call of the record cannot be read: {error}") from None


def _no_value(_found: dict[str, Any]) -> None:
    """A handle's value stayed on the server."""


def _arrays(value: Any) -> Iterator[Any]:
    """The arrays in a value, in order."""
    if isinstance(value, dict):
        for inner in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _arrays(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _arrays(inner)
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        yield value


def _npy(array: Any) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
