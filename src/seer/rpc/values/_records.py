"""Builds the classes that hints name (records, enums, named tuples, TypedDicts) from plain data.

Only classes that the interface's hints name are built, and only with exactly their fields: a
missing or an additional field is a mismatch. Errors of a class's own checks (`__post_init__`,
validation by pydantic or msgspec) become part of the message.
"""

# Values of any type are the subject here, and narrowing by exact type leaves parts unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ._convert import Compiler, Mismatch
from ._pack import is_literal
from ._types import Field, TypeDef

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Convert = Callable[[Any], Any]


def compile_class(compiler: Compiler, definition: TypeDef) -> Convert:
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
            raise Mismatch(definition.name, value, _said(error)) from None

    return convert


def _said(error: Any) -> str:
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
