"""Converts arguments by their hints, with converters that are compiled once per parameter.

`Compiler.compile(hint)` gives a function that turns a decoded value into the value for the exposed
function, and raises `Mismatch` for a value that does not fit. A conversion must neither lose
information nor guess: an int may stand for a float, a list for a tuple, a set or an array, and text
for a path or a date. But a bool is not an int, and `"3"` is not a number.

With `plain=True`, for peers that only have JSON (curl, MCP), base64 text is also accepted for bytes
and images, integral floats for ints, and the text of JSON keys for dict keys.
"""

# Values of any type are the subject here, and narrowing by exact type leaves parts unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import TYPE_CHECKING

from ._hints import Hint
from ._kinds import BY_NAME
from ._pack import raw_floats, short, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ._types import TypeDef

    Convert = Callable[[Any], Any]

EXACT: dict[str, type] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "none": type(None),
    "complex": complex,
}
"""The kinds for which the exact type of a value is enough."""


class Mismatch(Exception):
    """A value does not fit its hint. The containers around the value add its path."""

    def __init__(self, expected: str, value: Any, why: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.value = value
        self.why = why
        self.path: list[str] = []

    def __str__(self) -> str:
        got = came(self.value)
        return f"expected {self.expected}, got {got}" + (f": {self.why}" if self.why else "")


def came(value: Any) -> str:
    """A value in a message: its type, and the value itself if it is short."""
    if value is None:
        return "None"
    name = type_name(type(value))
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{name} of shape {tuple(shape)} and dtype {getattr(value, 'dtype', '?')}"
    if type(value) in (list, tuple, dict, set, frozenset, bytes) and len(value) > 20:
        return f"{name} of length {len(value)}"
    return f"{name} ({short(value)})"


class Compiler:
    """Compiles hints to converters, with the classes that they name."""

    def __init__(self, types: Mapping[str, TypeDef], *, plain: bool = False) -> None:
        self.types = types
        self.plain = plain
        self._named: dict[str, Convert] = {}

    def compile(self, hint: Hint) -> Convert:
        """The converter for a hint."""
        exact = EXACT.get(hint.kind)
        if exact is not None and hint.kind not in ("float", "complex"):
            return self._exact(hint.kind, exact)
        make = _MAKERS.get(hint.kind)
        return open_handle if make is None else make(self, hint)

    def _exact(self, kind: str, exact: type) -> Convert:
        if self.plain and kind in ("int", "bytes"):
            return _plain_int if kind == "int" else plain_bytes

        def convert(value: Any) -> Any:
            if type(value) is exact:
                return value
            value = open_handle(value)
            if type(value) is exact:
                return value
            raise Mismatch("None" if exact is type(None) else exact.__name__, value)

        return convert

    def named(self, name: str) -> Convert:
        """The converter for a named class; compiled on first use, as classes may be recursive."""

        def convert(value: Any) -> Any:
            known = self._named.get(name)
            if known is None:
                from ._records import compile_class

                known = self._named[name] = compile_class(self, self.types[name])
            return known(open_handle(value))

        return convert


def open_handle(value: Any) -> Any:
    """The value of a handle; any other value unchanged."""
    return value.value if getattr(type(value), "__seer_handle__", False) else value


def _plain_int(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    raise Mismatch("int", value)


def plain_bytes(value: Any) -> bytes:
    """Bytes from bytes, or from base64 text."""
    if type(value) is bytes:
        return value
    if type(value) is not str:
        raise Mismatch("bytes (as base64 text)", value)
    import base64

    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise Mismatch("bytes (as base64 text)", value, str(error)) from None


def _float(compiler: Compiler, _: Hint) -> Convert:
    def convert(value: Any) -> float:
        value = open_handle(value)
        if type(value) is float:
            return value
        if type(value) is int:
            try:
                return float(value)
            except OverflowError:
                raise Mismatch("float", value, "too large for a float") from None
        raise Mismatch("float", value)

    return convert


def _complex(compiler: Compiler, _: Hint) -> Convert:
    def convert(value: Any) -> complex:
        value = open_handle(value)
        if type(value) is complex:
            return value
        if type(value) in (float, int):
            return complex(number(value))
        if compiler.plain and type(value) is list and len(value) == 2:
            return complex(number(value[0]), number(value[1]))
        raise Mismatch("complex", value)

    number = _float(compiler, Hint("float"))
    return convert


def _list(compiler: Compiler, hint: Hint) -> Convert:
    make: type = {"list": list, "sequence": list, "set": set, "frozenset": frozenset}.get(
        hint.kind, tuple
    )
    accepted = (list, tuple) if make in (list, tuple) else (list, tuple, set, frozenset)
    keep = hint.kind == "sequence"
    item = hint.args[0] if hint.args else Hint("any")
    exact = frozenset({EXACT[item.kind]}) if item.kind in EXACT else None
    floats = item.kind == "float"
    convert_item = None if item.kind == "any" else compiler.compile(item)

    def convert(value: Any) -> Any:
        kind = type(value)
        if kind not in accepted:
            value = _listed(open_handle(value), accepted, hint)
            kind = type(value)
        if (
            convert_item is not None
            and not (floats and kind is list and len(value) > 64 and raw_floats(value) is not None)
            and not (exact is not None and exact.issuperset(map(type, value)))
        ):
            value = _convert_items(value, convert_item)
        if kind is make or (keep and kind is tuple):
            return value if type(value) is kind else kind(value)
        try:
            return make(value)
        except TypeError as error:
            raise Mismatch(str(hint), value, str(error)) from None

    return convert


def _listed(value: Any, accepted: tuple[type, ...], hint: Hint) -> Any:
    """The value, or the list of an array's items, which loses nothing."""
    if type(value) in accepted:
        return value
    if hasattr(value, "tolist") and getattr(value, "ndim", 0) > 0:
        return value.tolist()
    raise Mismatch(str(hint), value)


def _convert_items(value: Any, convert_item: Convert) -> list[Any]:
    items: list[Any] = []
    try:
        for item in value:
            items.append(convert_item(item))
    except Mismatch as problem:
        problem.path.insert(0, f"[{len(items)}]")
        raise
    return items


def _tuple(compiler: Compiler, hint: Hint) -> Convert:
    converters = [compiler.compile(arg) for arg in hint.args]

    def convert(value: Any) -> tuple[Any, ...]:
        value = open_handle(value)
        if type(value) not in (tuple, list):
            raise Mismatch(str(hint), value)
        if len(value) != len(converters):
            raise Mismatch(str(hint), value, f"it has {len(value)} items, not {len(converters)}")
        out: list[Any] = []
        try:
            for convert_item, item in zip(converters, value, strict=True):
                out.append(convert_item(item))
        except Mismatch as problem:
            problem.path.insert(0, f"[{len(out)}]")
            raise
        return tuple(out)

    return convert


def _dict(compiler: Compiler, hint: Hint) -> Convert:
    if not hint.args:

        def bare(value: Any) -> Any:
            value = open_handle(value)
            if type(value) is not dict:
                raise Mismatch(str(hint), value)
            return value

        return bare
    convert_key, convert_value = map(compiler.compile, hint.args)
    key_hint, value_hint = hint.args
    exact_key = frozenset({EXACT[key_hint.kind]}) if key_hint.kind in EXACT else None
    if compiler.plain and key_hint.kind in ("int", "float"):
        convert_key = _json_key(convert_key)
    same_value = value_hint.kind == "any"

    def convert(value: Any) -> dict[Any, Any]:
        value = open_handle(value)
        if type(value) is not dict:
            raise Mismatch(str(hint), value)
        if same_value and exact_key is not None and exact_key.issuperset(map(type, value)):
            return value
        out: dict[Any, Any] = {}
        key: Any = None
        try:
            for key, item in value.items():
                converted = convert_value(item)
                out[_checked_key(convert_key, key)] = converted
        except Mismatch as problem:
            problem.path.insert(0, f"[{short(key)}]")
            raise
        return out

    return convert


def _checked_key(convert_key: Convert, key: Any) -> Any:
    try:
        return convert_key(key)
    except Mismatch as problem:
        raise Mismatch(f"a key that is {problem.expected}", problem.value) from None


def _json_key(convert_key: Convert) -> Convert:
    """Convert the text of a number to the number, because keys in JSON are text."""
    import json

    def convert(key: Any) -> Any:
        if type(key) is str:
            try:
                key = json.loads(key)
            except ValueError:
                raise Mismatch("a number", key) from None
        return convert_key(key)

    return convert


def _union(compiler: Compiler, hint: Hint) -> Convert:
    exact = frozenset(EXACT[arg.kind] for arg in hint.args if arg.kind in EXACT)
    converters = [compiler.compile(arg) for arg in hint.args]

    def convert(value: Any) -> Any:
        if type(value) in exact:
            return value
        problems: list[Mismatch] = []
        for convert_one in converters:
            try:
                return convert_one(value)
            except Mismatch as problem:
                problems.append(problem)
        # Report the alternative that got furthest, which is most likely the intended one.
        deepest = max(problems, key=lambda problem: len(problem.path))
        if deepest.path:
            raise deepest
        raise Mismatch(str(hint), value, "; ".join({p.why: None for p in problems if p.why}))

    return convert


def _literal(compiler: Compiler, hint: Hint) -> Convert:
    allowed = {(type(value), value) for value in hint.detail}

    def convert(value: Any) -> Any:
        if (
            type(value) not in (str, int, bool, bytes, type(None))
            or (type(value), value) not in allowed
        ):
            raise Mismatch(f"one of {', '.join(map(repr, hint.detail))}", value)
        return value

    return convert


def _named(compiler: Compiler, hint: Hint) -> Convert:
    return compiler.named(hint.detail)


def _kind(compiler: Compiler, hint: Hint) -> Convert:
    from ._convert_kinds import make

    return make(hint, plain=compiler.plain)


def _handle(compiler: Compiler, hint: Hint) -> Convert:
    def convert(value: Any) -> Any:
        if not getattr(type(value), "__seer_handle__", False):
            raise Mismatch("a Handle", value)
        return value

    return convert


_MAKERS: dict[str, Callable[[Compiler, Hint], Convert]] = {
    "complex": _complex,
    "dict": _dict,
    "float": _float,
    "frozenset": _list,
    "handle": _handle,
    "list": _list,
    "literal": _literal,
    "mapping": _dict,
    "named": _named,
    "sequence": _list,
    "set": _list,
    "tuple": _tuple,
    "tuple_of": _list,
    "union": _union,
    **dict.fromkeys(BY_NAME, _kind),
}
