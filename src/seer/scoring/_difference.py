"""Compares a recorded value with a new one.

Floats are compared with a tolerance, because other hardware rounds differently, and NaN equals NaN;
everything else is compared exactly. Handles are compared by type, dtype and shape, because their
ids differ each time. A caller that reads plain JSON gets lists for tuples and arrays, so these
count as equal.
"""

import cmath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from seer.rpc.client import Handle
from seer.rpc.values._arrays import RawArray
from seer.runs import GateCall, Run
from seer.runs._call_values import result_of

_TOLERANCE = 1e-3
_COARSE = {"<f2": 2**-9, "bfloat16": 2**-6}
"""Tolerances of dtypes with fewer digits."""


@dataclass(frozen=True)
class RecordedHandle:
    """The description of a handle in a record."""

    id: str
    type: str
    dtype: str | None
    shape: list[int] | None


def recorded_result(run: Run, call: GateCall) -> Any:
    """The recorded result of a call, in the form that `difference` takes.

    Raises:
        RecordError: The result cannot be read.
    """
    return result_of(run, call, raw=True, handle=lambda about: RecordedHandle(**about))


def difference(recorded: Any, live: Any, path: str = "") -> str | None:
    """The difference in words; None if there is none.

    Args:
        recorded: The value from `recorded_result`.
        live: The value from `Gate.repeat`.
        path: The position of these values in the whole value.
    """
    if isinstance(recorded, RawArray) and isinstance(live, RawArray):
        return _arrays(recorded, live, path)
    old: Any = _plain(recorded)
    new: Any = _plain(live)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _mappings(cast("Mapping[Any, Any]", old), cast("Mapping[Any, Any]", new), path)
    if isinstance(old, list) and isinstance(new, list):
        return _lists(cast("list[Any]", old), cast("list[Any]", new), path)
    if _is_close(old, new) if _are_inexact(old, new) else old == new:
        return None
    return _differs(path, f"{old!r}", f"{new!r}")


def _plain(value: Any) -> Any:
    if isinstance(value, RawArray):
        return as_numpy(value).tolist()
    if isinstance(value, Handle | RecordedHandle):
        return {"type": value.type, "dtype": value.dtype, "shape": value.shape}
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


def _are_inexact(old: Any, new: Any) -> bool:
    numbers = all(isinstance(v, int | float | complex) for v in (old, new))
    return numbers and any(isinstance(v, float | complex) for v in (old, new))


def _is_close(old: Any, new: Any) -> bool:
    if old != old or new != new:
        return old != old and new != new
    try:
        return cmath.isclose(old, new, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    except OverflowError:  # an integer beyond the range of floats is close to no float
        return False


def _mappings(old: Mapping[Any, Any], new: Mapping[Any, Any], path: str) -> str | None:
    if old.keys() != new.keys():
        return _differs(path, f"the keys {list(old)}", f"{list(new)}")
    found = (difference(value, new[key], f"{path}[{key!r}]") for key, value in old.items())
    return next((words for words in found if words is not None), None)


def _lists(old: Sequence[Any], new: Sequence[Any], path: str) -> str | None:
    if len(old) != len(new):
        return f"{_at(path)}recorded {len(old)} values, got {len(new)}"
    pairs = enumerate(zip(old, new, strict=True))
    found = (difference(one, other, f"{path}[{i}]") for i, (one, other) in pairs)
    return next((words for words in found if words is not None), None)


def _arrays(old: RawArray, new: RawArray, path: str) -> str | None:
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        shapes = [f"an array {item.dtype} of shape {item.shape}" for item in (old, new)]
        return _differs(path, *shapes)
    if old.data == new.data:
        return None
    import numpy as np

    before, now = as_numpy(old), as_numpy(new)
    if before.dtype.kind in "fc":
        slack = _COARSE.get(old.dtype, _TOLERANCE)
        same = np.isclose(now, before, rtol=slack, atol=slack, equal_nan=True)
    else:
        same = now == before
    if same.all():
        return None
    place = tuple(int(n) for n in np.argwhere(~same)[0])
    where = f"{path}[{', '.join(map(str, place))}]"
    return _differs(where, repr(before[place].item()), repr(now[place].item()))


def as_numpy(array: RawArray) -> Any:
    """Convert to a numpy array; bfloat16 becomes float32."""
    import numpy as np

    if array.dtype == "bfloat16":
        # A bfloat16 is the upper half of a float32.
        return (
            (np.frombuffer(array.data, "<u2").astype("<u4") << 16).view("<f4").reshape(array.shape)
        )
    return np.frombuffer(array.data, array.dtype).reshape(array.shape)


def _differs(path: str, old: str, new: str) -> str:
    return f"{_at(path)}recorded {old[:80]}, got {new[:80]}"


def _at(path: str) -> str:
    return f"at {path}: " if path else ""
