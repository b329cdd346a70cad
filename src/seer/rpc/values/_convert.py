"""Converts arguments by their hints, with converters that are compiled once per parameter.

`Compiler.compile(hint)` returns a function that turns a decoded value into the value for the
exposed function, and raises `Mismatch` for a value that does not fit. A conversion must neither
lose information nor guess: an int may stand for a float, a list for a tuple, a set or an array, and
text for a path or a date. But a bool is not an int, and `"3"` is not a number.

With `plain=True`, for peers that only have JSON (curl, MCP), base64 text is also accepted for bytes
and images, integral floats for ints, and the text of JSON keys for dict keys.

A class (record, enum, named tuple or TypedDict) is built only if the interface's hints name it, and
only with exactly its fields: a missing or an additional field is a mismatch. Errors of a class's
own checks (`__post_init__`, validation by pydantic or msgspec) become part of the message.
"""

# Values of any type are the subject here, and narrowing by exact type leaves parts unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ProtocolError
from ._hints import LITERALS, Hint
from ._kinds import BY_NAME
from ._pack import is_literal, raw_floats, short, type_name

if TYPE_CHECKING:
    from ._types import Field, TypeDef

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
"""The kinds for which it is enough to check the exact type of a value."""


class Mismatch(Exception):
    """A value does not fit its hint. The containers around the value add its path."""

    def __init__(self, expected: str, value: Any, why: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.value = value
        self.why = why
        self.path: list[str] = []

    def __str__(self) -> str:
        got = _described(self.value)
        return f"expected {self.expected}, got {got}" + (f": {self.why}" if self.why else "")


def _described(value: Any) -> str:
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
    """Compiles hints, and the classes that they name, to converters."""

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
                known = self._named[name] = _compile_class(self, self.types[name])
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
        if type(value) not in LITERALS or (type(value), value) not in allowed:
            raise Mismatch(f"one of {', '.join(map(repr, hint.detail))}", value)
        return value

    return convert


def _named(compiler: Compiler, hint: Hint) -> Convert:
    return compiler.named(hint.detail)


def _kind(compiler: Compiler, hint: Hint) -> Convert:
    inner = BY_NAME[hint.kind].convert()(hint, compiler.plain)
    return lambda value: inner(open_handle(value))


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


def _compile_class(compiler: Compiler, definition: TypeDef) -> Convert:
    """The converter for a class."""
    cls: Any = definition.cls
    if definition.kind == "enum":
        return _enum(cls)
    if definition.kind == "tuple":
        return _named_tuple(compiler, definition, cls)
    fields = _FieldReader(compiler, definition)
    if definition.kind == "dict":
        return fields.read
    if hasattr(cls, "__pydantic_fields__"):
        return _checked_by_library(definition, cls, _pydantic(cls))
    if hasattr(cls, "__struct_fields__"):
        return _checked_by_library(definition, cls, _msgspec(cls))

    def build(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        given = fields.read(value)
        names = fields.arguments
        return _construct(cls, value, **{names[k]: v for k, v in given.items() if k in names})

    return build


class _FieldReader:
    """Reads a dict by the fields of a class."""

    def __init__(self, compiler: Compiler, definition: TypeDef) -> None:
        self.name = definition.name
        # attrs drops the leading underscores of a private field in its constructor.
        private = hasattr(definition.cls, "__attrs_attrs__")
        self.arguments = {
            f.name: f.name.lstrip("_") if private else f.name for f in definition.fields if f.init
        }
        self._required = [f.name for f in definition.fields if f.init and f.default is None]
        self._converters = {f.name: compiler.compile(f.hint) for f in definition.fields}

    def read(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Mismatch(self._expected(), value)
        out: dict[str, Any] = {}
        for name, item in value.items():
            convert = self._converters.get(name) if type(name) is str else None
            if convert is None:
                raise Mismatch(self._expected(), value, f"there is no field {name!r}")
            try:
                out[name] = convert(item)
            except Mismatch as problem:
                problem.path.insert(0, f".{name}")
                raise
        for name in self._required:
            if name not in out:
                raise Mismatch(self._expected(), value, f"the field {name!r} is missing")
        return out

    def _expected(self) -> str:
        return f"{self.name} (fields: {', '.join(self._converters)})"


def _construct(cls: Any, value: Any, /, *args: Any, **kwargs: Any) -> Any:
    try:
        return cls(*args, **kwargs)
    except (TypeError, ValueError, AssertionError) as error:
        raise Mismatch(cls.__name__, value, str(error) or type(error).__name__) from None


def _enum(cls: Any) -> Convert:
    names: dict[str, Any] = dict(cls.__members__)
    expected = f"{cls.__name__} ({', '.join(repr(member.value) for member in cls)})"

    def convert(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not is_literal(value):
            raise Mismatch(expected, value)
        try:
            member = cls(value)
        except (TypeError, ValueError):
            member = names.get(value) if type(value) is str else None
            if member is None:
                raise Mismatch(expected, value) from None
            return member
        # An enum's look-up accepts True for 1.
        if type(value) is bool and type(member.value) is not bool:
            raise Mismatch(expected, value)
        return member

    return convert


def _named_tuple(compiler: Compiler, definition: TypeDef, cls: Any) -> Convert:
    fields: tuple[Field, ...] = definition.fields
    reader = _FieldReader(compiler, definition)
    least = sum(field.default is None for field in fields)

    def convert(value: Any) -> Any:
        if type(value) in (list, tuple):
            if not least <= len(value) <= len(fields):
                needed = f"{least} to {len(fields)}" if least < len(fields) else f"{least}"
                raise Mismatch(cls.__name__, value, f"it has {len(value)} items, not {needed}")
            value = {field.name: item for field, item in zip(fields, value, strict=False)}
        return cls(**reader.read(value))

    return convert


def _checked_by_library(definition: TypeDef, cls: Any, check: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if type(value) is not dict:
            raise Mismatch(definition.name, value)
        try:
            return check(value)
        except ValueError as error:
            raise Mismatch(definition.name, value, _one_line(error)) from None

    return convert


def _one_line(error: Any) -> str:
    """The error of a library's check, in one line."""
    if not hasattr(error, "errors"):
        return str(error)
    found = error.errors(include_url=False)
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found)


def _pydantic(cls: Any) -> Convert:
    wanted = {
        name: alias
        for name, field in cls.__pydantic_fields__.items()
        if isinstance(alias := field.validation_alias or field.alias, str)
    }
    return lambda value: cls.model_validate({wanted.get(k, k): v for k, v in value.items()})


def _msgspec(cls: Any) -> Convert:
    msgspec: Any = sys.modules["msgspec"]
    wanted = {field.name: field.encode_name for field in msgspec.structs.fields(cls)}

    def check(value: Any) -> Any:
        # msgspec ignores unknown fields unless the class forbids them. The gate refuses them.
        unknown = [name for name in value if name not in wanted]
        if unknown:
            raise ValueError(f"there is no field {unknown[0]!r}")
        return msgspec.convert({wanted[k]: v for k, v in value.items()}, cls)

    return check


# --- the kinds of `_kinds` -------------------------------------------------------------------
#
# A converter is made for a hint that names the class, so its library is already loaded.

_NUMBER_KINDS = "biufc"
_FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What libraries raise for data that they do not accept."""


def ndarray(hint: Hint, plain: bool) -> Convert:
    """Arrays, of the dtype that the hint names."""
    numpy: Any = sys.modules["numpy"]
    dtype = None if hint.detail is None else numpy.dtype(hint.detail)
    expected = "numpy.ndarray" + (f" of {dtype}" if dtype is not None else "")

    def convert(value: Any) -> Any:
        if not isinstance(value, numpy.ndarray):
            value = _to_array(numpy, value, dtype, expected)
        if dtype is None or value.dtype == dtype:
            return value
        if not numpy.can_cast(value.dtype, dtype, "same_kind"):
            raise Mismatch(expected, value, "the conversion would lose data")
        return value.astype(dtype)

    return convert


def _to_array(numpy: Any, value: Any, dtype: Any, expected: str) -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor: Any = value.detach().cpu()
        return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    if type(value) not in (list, tuple, int, float, bool, complex):
        raise Mismatch(expected, value)
    try:
        array = numpy.asarray(value)
        # The numbers of a list have no width, so a narrower type loses nothing.
        if dtype is not None and array.dtype.kind in "iu" and dtype.kind in "iu":
            array = numpy.asarray(value, dtype=dtype)
        elif array.size == 0 and dtype is not None:
            array = array.astype(dtype)
    except _FAILURES as error:
        raise Mismatch(expected, value, str(error)) from None
    if array.dtype.kind not in _NUMBER_KINDS:
        raise Mismatch(expected, value, "the lists hold values that are not numbers")
    return array


def tensor(hint: Hint, plain: bool) -> Convert:
    """Tensors."""
    torch: Any = sys.modules["torch"]

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value
        numpy: Any = sys.modules.get("numpy")
        try:
            if numpy is not None and isinstance(value, numpy.ndarray):
                return torch.from_numpy(value if value.flags.writeable else value.copy())
            if type(value) in (list, tuple, int, float, bool, complex):
                return torch.tensor(value)
        except _FAILURES as error:
            raise Mismatch("torch.Tensor", value, str(error)) from None
        raise Mismatch("torch.Tensor", value)

    return convert


def image(hint: Hint, plain: bool) -> Convert:
    """Images, from PNG data."""
    image: Any = sys.modules["PIL.Image"]

    def convert(value: Any) -> Any:
        if isinstance(value, image.Image):
            return value
        from ._arrays import open_png

        if plain and type(value) is str:
            value = plain_bytes(value)
        if type(value) is not bytes:
            raise Mismatch("an image", value)
        try:
            return open_png(value)
        except ProtocolError as error:
            raise Mismatch("an image", value, str(error)) from None

    return convert


def table(name: str) -> Callable[[Hint, bool], Convert]:
    """Data frames or series, also from columns or records."""

    def maker(hint: Hint, plain: bool) -> Convert:
        cls: Any = getattr(sys.modules["pandas"], name)
        is_series = name == "Series"

        def convert(value: Any) -> Any:
            if isinstance(value, cls):
                return value
            columns = type(value) is dict or hasattr(value, "__array_interface__")
            records = type(value) is list and (is_series or _are_dicts(value))
            if not (columns or records):
                raise Mismatch(f"pandas.{name}", value)
            try:
                return cls(value)
            except _FAILURES as error:
                raise Mismatch(f"pandas.{name}", value, str(error)) from None

        return convert

    return maker


def _are_dicts(value: Any) -> bool:
    return all(type(item) is dict for item in value)


def path(hint: Hint, plain: bool) -> Convert:
    """Paths, from text."""
    pathlib: Any = sys.modules["pathlib"]

    def convert(value: Any) -> Any:
        if type(value) is not str:
            raise Mismatch("a path, as text", value)
        return pathlib.Path(value)

    return convert


def moment(name: str) -> Callable[[Hint, bool], Convert]:
    """Dates or times, also from ISO 8601 text."""

    def maker(hint: Hint, plain: bool) -> Convert:
        cls: Any = getattr(sys.modules["datetime"], name)
        expected = f"datetime.{name} (or ISO 8601 text)"

        def convert(value: Any) -> Any:
            if type(value) is cls:
                return value
            if type(value) is not str:
                raise Mismatch(expected, value)
            try:
                return cls.fromisoformat(value)
            except ValueError as error:
                raise Mismatch(expected, value, str(error)) from None

        return convert

    return maker


def timedelta(hint: Hint, plain: bool) -> Convert:
    """Durations, also from seconds."""
    cls: Any = sys.modules["datetime"].timedelta

    def convert(value: Any) -> Any:
        if type(value) is cls:
            return value
        if type(value) not in (int, float):
            raise Mismatch("datetime.timedelta (or seconds)", value)
        try:
            return cls(seconds=value)
        except (OverflowError, ValueError) as error:
            raise Mismatch("datetime.timedelta (or seconds)", value, str(error)) from None

    return convert
