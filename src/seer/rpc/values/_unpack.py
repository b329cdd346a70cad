"""The receiving half of the wire format: tagged JSON objects become values again.

The peer may be hostile. Every tag has a fixed set of fields, every reference to a buffer is
checked, and no name from the wire is looked up in a module, only in the tables here. Numbers in
buffers are little-endian, like the machines this runs on.
"""

# Values of any type are the subject here, and narrowing by exact type leaves parts unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import ProtocolError
from ._kinds import KINDS, TAG

if TYPE_CHECKING:
    Restorers = Mapping[str, Callable[[dict[str, Any]], object]]

_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})


class Unpacker:
    """Reads a text with tags. The JSON parser calls it for each object, the inner ones first."""

    __slots__ = ("_buffers", "_extra", "raw", "torch")

    def __init__(
        self,
        buffers: Sequence[Any],
        *,
        torch: bool = False,
        raw: bool = False,
        extra: Restorers | None = None,
    ) -> None:
        self._buffers = buffers
        self._extra = extra
        self.torch = torch
        self.raw = raw

    def read(self, string: str) -> Any:
        """The value.

        Raises:
            ProtocolError: A tagged object is malformed.
            ValueError: The text is not JSON.
        """
        return json.loads(string, object_hook=self._restore)

    def buffer(self, index: Any) -> memoryview:
        """The buffer with this index, as bytes."""
        if type(index) is not int or not 0 <= index < len(self._buffers):
            raise ProtocolError(f"there is no buffer {index!r}; there are {len(self._buffers)}")
        view = memoryview(self._buffers[index])
        return view if view.format == "B" and view.ndim == 1 else view.cast("B")

    def _restore(self, found: dict[str, Any]) -> Any:
        if TAG not in found:
            return found
        tag = found.pop(TAG)
        known = _KNOWN.get(tag) if type(tag) is str else None
        if known is None:
            if self._extra is not None and type(tag) is str and tag in self._extra:
                return self._extra[tag](found)
            raise ProtocolError(f"unknown tag {tag!r}")
        fields, restore = known
        if found.keys() != fields:
            raise ProtocolError(f"tag {tag!r} has the fields {sorted(found)}, not {sorted(fields)}")
        try:
            return restore(self, found)
        except (TypeError, ValueError, KeyError, OverflowError, struct.error) as error:
            raise ProtocolError(f"tag {tag!r}: {error}") from None


def deeper_than(value: Any, depth: int) -> bool:
    """Whether containers are nested more than `depth` levels; without recursion."""
    level: list[Any] = [value]
    for _ in range(depth):
        below: list[Any] = []
        for item in level:
            kind: Any = type(item)
            if kind is dict:
                below.extend([x for x in item.values() if type(x) in _CONTAINERS])
                below.extend([x for x in item if type(x) is tuple])
            elif kind in _CONTAINERS:
                below.extend([x for x in item if type(x) in _CONTAINERS])
        if not below:
            return False
        level = below
    return True


def _items(found: dict[str, Any]) -> Any:
    items = found["items"]
    if type(items) is not list:
        raise ProtocolError(f"items must be a list, not {type(items).__name__}")
    return items


def _dict(_: Unpacker, found: dict[str, Any]) -> dict[Any, Any]:
    pairs = _items(found)
    if not all(type(pair) is list and len(pair) == 2 for pair in pairs):
        raise ProtocolError("the items of a dict must be pairs")
    return dict(pairs)


def _numbers(unpacker: Unpacker, found: dict[str, Any], code: Any) -> Any:
    view = unpacker.buffer(found["buffer"])
    if len(view) % 8:
        raise ProtocolError(f"{len(view)} bytes are not a whole number of 8-byte numbers")
    return view.cast(code).tolist() if view else []


def _huge_int(_: Unpacker, found: dict[str, Any]) -> int:
    text = found["hex"]
    if type(text) is not str:
        raise ProtocolError("an int's hex must be text")
    return int(text, 16)


def _bytes(unpacker: Unpacker, found: dict[str, Any]) -> bytes:
    return bytes(unpacker.buffer(found["buffer"]))


def _complex(_: Unpacker, found: dict[str, Any]) -> complex:
    real, imaginary = found["value"]
    return complex(_float(real), _float(imaginary))


def _float(value: Any) -> float:
    if type(value) is not float:
        raise ProtocolError(f"a float is expected here, not {value!r}")
    return value


_BUFFER = frozenset({"buffer"})
_ITEMS = frozenset({"items"})
_VALUE = frozenset({"value"})

_KNOWN: dict[str, tuple[frozenset[str], Callable[[Unpacker, dict[str, Any]], Any]]] = {
    "bytes": (_BUFFER, _bytes),
    "complex": (_VALUE, _complex),
    "dict": (_ITEMS, _dict),
    "floats": (_BUFFER, lambda unpacker, found: _numbers(unpacker, found, "d")),
    "frozenset": (_ITEMS, lambda _, found: frozenset(_items(found))),
    "int": (frozenset({"hex"}), _huge_int),
    "ints": (_BUFFER, lambda unpacker, found: _numbers(unpacker, found, "q")),
    "set": (_ITEMS, lambda _, found: set(_items(found))),
    "tuple": (_ITEMS, lambda _, found: tuple(_items(found))),
    **{kind.tag: (kind.fields, kind.unpack) for kind in KINDS if kind.unpack is not None},
}
