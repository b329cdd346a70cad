"""The sending half of the wire format: a value becomes a tree for the JSON encoder, plus buffers.

`_codec` uses it for values that are not plain JSON. Kinds with their own class, such as arrays and
dates, are packed as their rows in `_kinds` say.
"""

# Values of any type are the subject here, and narrowing by exact type leaves parts unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import enum
import json
import marshal
import math
import struct
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._kinds import KINDS, TAG

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._arrays import TensorBuffer

    AnyBuffer = Buffer | TensorBuffer
    Extra = Callable[[object], "dict[str, Any] | None"]
    Scrub = Callable[[Any], Any]

LONG_LIST = 64
"""A list of at least this many floats or ints is sent as raw memory."""
MAX_DEPTH = 100
MANY_NUMBERS = 1_000_000
_SHORT = 60
"""Maximum number of characters of a value in a message."""

LEAVES = frozenset({str, int, float, bool, type(None)})
NUMBERS = frozenset({int, float})
STRINGS = frozenset({str})
_EXACT: Any = ((str, str.__str__), (int, int.__index__), (float, float.__float__))
_LIBRARIES = {kind.root: kind.pack for kind in KINDS if kind.library}
"""The functions that pack values, by the library of their class."""
_STANDARD = [kind for kind in KINDS if not kind.library]


UNKNOWN = object()
"""The result of a pack function for a value that it does not know."""


class Omitted:
    """An argument that is left out of the call; generated code passes it where only the server
    knows the default."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "..."


OMITTED = Omitted()


class Unsendable(Exception):
    """A part of a value cannot be sent. The containers around the part add its path."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []


class Packer:
    """Packs one value: makes a tree that the JSON encoder can write, and collects buffers."""

    __slots__ = ("_numbers", "buffers", "extra", "frames", "scrub")

    def __init__(
        self,
        buffers: list[AnyBuffer],
        frames: bool = True,
        extra: Extra | None = None,
        scrub: Scrub | None = None,
    ) -> None:
        self.buffers = buffers
        self.frames = frames
        self.extra = extra
        self.scrub = scrub
        self._numbers = 0

    def add(self, buffer: AnyBuffer) -> int:
        """Append a buffer, and return its index."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def pack(self, value: Any, depth: int) -> Any:
        """The tree for `value`, which may be nested at most `depth` levels.

        Raises:
            Unsendable: A part cannot be sent.
        """
        kind: Any = type(value)
        if kind in LEAVES:
            return value
        if depth <= 0:
            raise Unsendable(f"is nested deeper than {MAX_DEPTH} levels (or contains itself)")
        if self.extra is not None and (known := self.extra(value)) is not None:
            return known
        if isinstance(value, dict):
            return self._pack_dict(value, depth)
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._pack_items(value, depth)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._pack_bytes(value)
        packed = self._pack_library_value(value, depth)
        return self._pack_object(value, depth) if packed is UNKNOWN else packed

    def _pack_dict(self, value: dict[Any, Any], depth: int) -> Any:
        key: Any = None
        tagged = self.frames and not (STRINGS.issuperset(map(type, value)) and TAG not in value)
        pairs: list[Any] = []
        out: dict[str, Any] = {}
        try:
            for key, item in value.items():
                packed = self.pack(item, depth - 1)
                if tagged:
                    pairs.append([self._pack_key(key, depth - 1), packed])
                    continue
                name = key if type(key) is str else self._plain_key(key, depth - 1)
                if name in out:
                    raise Unsendable(f"is the second value under the plain JSON key {name!r}")
                out[name] = packed
        except Unsendable as problem:
            problem.path.insert(0, f"[{short(key)}]")
            raise
        return {TAG: "dict", "items": pairs} if tagged else out

    def _pack_key(self, key: Any, depth: int) -> Any:
        try:
            packed = self.pack(key, depth)
        except Unsendable as problem:
            raise Unsendable(f"has a key that {problem.what}") from None
        if packed.__class__ is dict and self.frames and not _can_be_key(packed):
            raise Unsendable(f"has a key that is {_RECORD_KEY.format(type_name(type(key)))}")
        return packed

    def _plain_key(self, key: Any, depth: int) -> str:
        """The text for a key, because keys of JSON objects are text."""
        packed = self._pack_key(key, depth)
        return packed if isinstance(packed, str) else json.dumps(packed)

    def _pack_items(self, value: Any, depth: int) -> Any:
        is_list = isinstance(value, list)
        if is_list and self.frames and len(value) >= LONG_LIST:
            numbers = self._pack_numbers(value)
            if numbers is not None:
                return numbers
        items: list[Any] = []
        try:
            for item in value:
                items.append(self.pack(item, depth - 1))
        except Unsendable as problem:
            problem.path.insert(0, f"[{len(items)}]")
            raise
        if is_list or not self.frames:
            return items
        if isinstance(value, tuple):
            return {TAG: "tuple", "items": items}
        for item, packed in zip(value, items, strict=True):
            if packed.__class__ is dict and not _can_be_key(packed):
                raise Unsendable(f"has an item that is {_RECORD_KEY.format(type_name(type(item)))}")
        return {TAG: "frozenset" if isinstance(value, frozenset) else "set", "items": items}

    def _pack_numbers(self, value: list[Any]) -> Any:
        """Raw memory for a list of only floats or only 64-bit ints; None for any other."""
        first: Any = type(value[0])
        if first is float:
            tag, raw = "floats", raw_floats(value)
        elif first is int:
            tag, raw = "ints", raw_ints(value)
        else:
            return None
        if raw is None:
            return None
        self._numbers += len(value)
        if self._numbers > MANY_NUMBERS:
            warn_many_numbers()
        return {TAG: tag, "buffer": self.add(raw)}

    def _pack_bytes(self, value: bytes | bytearray | memoryview) -> Any:
        if isinstance(value, memoryview):
            value = value.tobytes()
        if self.scrub is not None:
            value = bytes(self.scrub(bytes(value)))
        if self.frames:
            return {TAG: "bytes", "buffer": self.add(value)}
        import binascii

        return binascii.b2a_base64(value, newline=False).decode()

    def _pack_library_value(self, value: Any, depth: int) -> Any:
        """Arrays, tensors, images, data frames; `UNKNOWN` for anything else."""
        for kind in type(value).__mro__:
            pack = _LIBRARIES.get(kind.__module__.partition(".")[0])
            if pack is not None:
                return pack(self, value, depth)
        return UNKNOWN

    def _pack_object(self, value: Any, depth: int) -> Any:
        """The tree for records, enums and other values of the standard library."""
        fields = record_fields(value)
        if fields is not None:
            given = {name: item for name, item in fields.items() if item is not OMITTED}
            return self._pack_dict(given, depth)
        if isinstance(value, enum.Enum):
            return self.pack(enum_value(value), depth - 1)
        for base, exact in _EXACT:
            if isinstance(value, base):
                return exact(value)
        if isinstance(value, complex):
            parts = [value.real, value.imag]
            return {TAG: "complex", "value": parts} if self.frames else parts
        for kind in _STANDARD:
            if kind.has(value):
                return kind.pack(self, value, depth)
        raise Unsendable(f"is a {type_name(type(value))}, which cannot be sent{_advice(value)}")


_RECORD_KEY = "a {}, whose fields arrive as a dict, which is not hashable; send a list or a tuple"


def _can_be_key(packed: dict[str, Any]) -> bool:
    """Whether the receiver can use a packed value as a key or in a set; False for a record."""
    kind = packed.get(TAG)
    if kind in ("tuple", "frozenset"):
        return all(item.__class__ is not dict or _can_be_key(item) for item in packed["items"])
    return kind is not None and kind != "dict"


def raw_floats(value: list[Any]) -> bytes | None:
    """The floats as little-endian doubles, or None if the list has something else.

    `marshal` checks exact types several times faster than a loop over `type`: it writes each float,
    and nothing else, as a `g` and eight bytes.
    """
    data = _marshalled(value)
    if data is None or len(data) != 5 + 9 * len(value) or data[5::9] != b"g" * len(value):
        return None
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return struct.pack(f"<{len(value)}d", *value)
    cells = numpy.frombuffer(data, dtype=[("mark", "u1"), ("number", "<f8")], offset=5)
    return cells["number"].tobytes()


def raw_ints(value: list[Any]) -> bytes | None:
    """The ints as little-endian 64-bit words, or None if one is larger or is not an int."""
    if set(map(type, value)) != {int}:
        return None
    try:
        return struct.pack(f"<{len(value)}q", *value)
    except struct.error:
        return None


def _marshalled(value: list[Any]) -> bytes | None:
    try:
        return marshal.dumps(value, 2)
    except ValueError:
        return None


def pack_huge_ints(tree: Any) -> Any:
    """The same tree with huge ints in base 16, for which Python has no limit of digits."""
    kind: Any = type(tree)
    if kind is int and tree.bit_length() > 2048:
        return {TAG: "int", "hex": hex(tree)}
    if kind is list:
        return [pack_huge_ints(item) for item in tree]
    if kind is dict:
        return {key: pack_huge_ints(item) for key, item in tree.items()}
    return tree


def record_fields(value: Any) -> dict[str, Any] | None:
    """The fields of a record: dataclass, attrs, msgspec or pydantic. None for other values."""
    kind: Any = type(value)
    if hasattr(kind, "__pydantic_fields__"):
        return dict(value)  # with the extra ones, where the model allows them
    if hasattr(kind, "__dataclass_fields__"):
        names = [field.name for field in sys.modules["dataclasses"].fields(kind)]
    elif hasattr(kind, "__attrs_attrs__"):
        names = [attribute.name for attribute in kind.__attrs_attrs__]
    elif hasattr(kind, "__struct_fields__"):
        names = list(kind.__struct_fields__)
    else:
        return None
    try:
        return {name: getattr(value, name) for name in names}
    except AttributeError as error:
        raise Unsendable(f"is a {type_name(kind)} without all of its fields: {error}") from None


def enum_value(member: Any) -> Any:
    """What is sent for an enum member: its value, or its name if the value is not a literal."""
    return member.value if is_literal(member.value) else member.name


def is_literal(value: Any) -> bool:
    """Whether `repr(value)` is source text that makes exactly this value."""
    kind: Any = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind in (list, tuple):
        return all(map(is_literal, value))
    if kind is dict:
        return all(is_literal(k) and is_literal(v) for k, v in value.items())
    return kind is bytes or kind in LEAVES


def known_class(module: str, name: str) -> Any:
    """A class for `isinstance`; `()`, which nothing matches, if its module is not imported."""
    found = sys.modules.get(module)
    return () if found is None else getattr(found, name)


def type_name(kind: Any) -> str:
    """The public name of a class: `torch.nn.Linear`, without the module of its file."""
    module, name = kind.__module__, kind.__qualname__
    if module == "builtins":
        return name
    parts = module.split(".")
    for end in range(1, len(parts)):
        outer = sys.modules.get(".".join(parts[:end]))
        if getattr(outer, name, None) is kind:
            return ".".join([*parts[:end], name])
    return f"{module}.{name}"


def short(value: object) -> str:
    """`repr`, cut to a length for messages."""
    try:
        text = repr(value)
    except Exception as error:  # from a class's own `__repr__`, or an int with too many digits
        text = f"it cannot be shown: {type(error).__name__}"
    return text if len(text) <= _SHORT else text[: _SHORT - 3] + "..."


def _advice(value: object) -> str:
    if hasattr(value, "__next__") or hasattr(value, "__anext__"):
        return "; make the function itself a generator, or collect the items in a list"
    if hasattr(value, "__await__"):
        return "; await it in the function"
    if hasattr(value, "__len__") and hasattr(value, "__iter__"):
        return "; turn it into a list or a dict"
    return "; return its data, or keep it on the server with `-> Handle`"


_warned = False


def warn_many_numbers() -> None:
    """Warn once per process that lists are slow for many numbers."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"a value with more than {MANY_NUMBERS} numbers is sent as a list; an array (numpy, "
            "or a tensor as it is, without `.tolist()`) is many times faster",
            stacklevel=2,
        )
