"""Arrays of a run's calls as `.npy` files, for numpy and other readers.

The record keeps an array as raw memory in a file named by its hash, and its dtype and shape in the
line of the call. The export writes one file for each occurrence of an array, with its exact values.
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seer.errors import RecordError
from seer.runs._call_values import arguments_of, result_of
from seer.runs._reader import Run


def export_arrays(run: Run, folder: Path | str) -> list[Path]:
    """Write every array among the arguments and results of the run's calls.

    Args:
        run: The run.
        folder: The target folder; created if it is missing. Files are named by the call's number,
            the function, and a number within the call: `0003-activations-result-0.npy`.

    Raises:
        RecordError: A call of the record cannot be read, or the record lacks items of a stream. The
            arrays of the other calls are written.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    problems: list[str] = []
    for number, call in enumerate(run.typed_calls()):
        function = re.sub(r"\W", "_", call.function)
        taken = given = None
        try:
            taken = arguments_of(run, call) if call.argument_buffers else None
            given = result_of(run, call) if call.result_buffers else None
        except RecordError as error:
            problems.append(f"call {number} of {call.function!r}: {error}")
        for side, values in (("argument", taken), ("result", given)):
            for index, array in enumerate(_arrays(values)):
                path = target / f"{number:04}-{function}-{side}-{index}.npy"
                path.write_bytes(_npy(array))
                written.append(path)
    if problems:
        why = "; ".join(problems)
        raise RecordError(f"not all arrays could be exported to {str(target)!r}: {why}")
    return written


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
