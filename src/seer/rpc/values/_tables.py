"""pandas frames and series on the wire.

A frame is sent as its columns: numbers and times as arrays, all others as lists with the name of
the dtype, which must match a pattern when it is read. Categories are rebuilt from the values, so
their order is lost. A peer that reads plain JSON gets `{column: [values]}`.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from ...errors import ProtocolError
from ._arrays import is_list
from ._pack import (
    TAG,
    UNKNOWN,
    Packer,
    Unsendable,
)

if TYPE_CHECKING:
    from ._unpack import Unpacker

_DTYPE = re.compile(
    r"object|str|string|category|boolean|U?Int(8|16|32|64)|Float(32|64)"
    r"|datetime64\[(s|ms|us|ns), [A-Za-z0-9_+:/-]{1,40}\]"
)


def pack(packer: Packer, value: Any, depth: int) -> Any:
    """The tree for a frame, a series, an index or a scalar of pandas; `UNKNOWN` for others."""
    pandas = sys.modules["pandas"]
    if isinstance(value, pandas.DataFrame):
        return _pack_frame(packer, value, depth)
    if isinstance(value, pandas.Series):
        if not packer.frames:
            return packer.pack(_plain_items(value), depth)
        column = _pack_column(packer, value.name, value, depth)
        return {TAG: "series", "column": column, "index": _pack_index(packer, value.index, depth)}
    if isinstance(value, (pandas.Index, pandas.api.extensions.ExtensionArray)):
        return packer.pack(_plain_items(value), depth)
    if value is pandas.NA or value is pandas.NaT:
        return None
    if isinstance(value, pandas.Timestamp):
        text = value.isoformat()
        return {TAG: "datetime", "value": text} if packer.frames else text
    if isinstance(value, pandas.Timedelta):
        return packer.pack(value.to_pytimedelta(), depth)
    return UNKNOWN


def _pack_frame(packer: Packer, frame: Any, depth: int) -> Any:
    names: list[Any] = frame.columns.tolist()
    columns = [frame.iloc[:, i] for i in range(len(names))]
    if packer.frames:
        packed = [_pack_column(packer, *pair, depth) for pair in zip(names, columns, strict=True)]
        return {TAG: "frame", "columns": packed, "index": _pack_index(packer, frame.index, depth)}
    if len(set(map(str, names))) != len(names):
        raise Unsendable(
            "is a data frame with duplicate column names, which plain JSON cannot represent"
        )
    pairs = zip(map(str, names), columns, strict=True)
    return {name: packer.pack(_plain_items(column), depth - 1) for name, column in pairs}


def _pack_index(packer: Packer, index: Any, depth: int) -> Any:
    """The length of the default index 0, 1, 2, ...; for others, one column per level."""
    pandas = sys.modules["pandas"]
    plain = isinstance(index, pandas.RangeIndex) and index.equals(pandas.RangeIndex(len(index)))
    if plain and index.name is None:
        return len(index)
    levels = range(index.nlevels)
    return [_pack_column(packer, index.names[i], index.get_level_values(i), depth) for i in levels]


def _pack_column(packer: Packer, name: Any, column: Any, depth: int) -> list[Any]:
    dtype = column.dtype
    try:
        packed_name = packer.pack(name, depth - 1)
        of_numpy = isinstance(dtype, sys.modules["numpy"].dtype)
        if of_numpy and dtype.kind in "biufcmM":
            return [packed_name, None, packer.pack(column.to_numpy(), depth - 1)]
        if not _DTYPE.fullmatch(dtype.name):
            raise Unsendable(f"has the dtype {dtype.name}, which cannot be sent")
        return [packed_name, dtype.name, packer.pack(_plain_items(column), depth - 1)]
    except Unsendable as problem:
        problem.path.insert(0, f"[{name!r}]")
        raise


def _plain_items(column: Any) -> list[Any]:
    pandas = sys.modules["pandas"]
    missing = [pandas.NA, pandas.NaT]
    if isinstance(getattr(column, "dtype", None), pandas.StringDtype):
        missing.append(column.dtype.na_value)
    return [None if any(item is m for m in missing) else item for item in column.tolist()]


def unpack_frame(unpacker: Unpacker, found: dict[str, Any]) -> Any:
    """The frame of a tagged object; with `raw`, its columns as received."""
    columns = _columns(found["columns"])
    if unpacker.raw:
        return {"columns": columns, "index": found["index"]}
    pandas = _pandas()
    index = _index(pandas, found["index"])
    data = {i: _series(pandas, column, index) for i, column in enumerate(columns)}
    frame = pandas.DataFrame(data, index=index)
    frame.columns = pandas.Index([name for name, _, _ in columns]) if columns else frame.columns
    return frame


def unpack_series(unpacker: Unpacker, found: dict[str, Any]) -> Any:
    """The series of a tagged object; with `raw`, its column as received."""
    (column,) = _columns([found["column"]])
    if unpacker.raw:
        return {"column": column, "index": found["index"]}
    pandas = _pandas()
    series = _series(pandas, column, _index(pandas, found["index"]))
    series.name = column[0]
    return series


def _columns(found: Any) -> list[Any]:
    if not is_list(found):
        raise ProtocolError("columns must be a list")
    for column in found:
        if not is_list(column) or len(column) != 3:
            raise ProtocolError("a column must be a name, a dtype and values")
        dtype = column[1]
        if dtype is not None and not (type(dtype) is str and _DTYPE.fullmatch(dtype)):
            raise ProtocolError(f"columns of dtype {dtype!r} are not accepted")
    return found


def _series(pandas: Any, column: Any, index: Any) -> Any:
    name, dtype, values = column
    if not hasattr(values, "__len__") or len(values) != len(index):
        raise ProtocolError(f"the column {name!r} does not have the {len(index)} rows of the index")
    return pandas.Series(values, dtype=dtype, index=index)


def _index(pandas: Any, found: Any) -> Any:
    if type(found) is int and found >= 0:
        return pandas.RangeIndex(found)
    levels = [
        pandas.Index(values, dtype=dtype, name=name) for name, dtype, values in _columns(found)
    ]
    if len(levels) == 1:
        return levels[0]
    return pandas.MultiIndex.from_arrays(levels)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ProtocolError(
            "the value is a data frame, but pandas is not installed here; install it"
        ) from None
    return pandas
