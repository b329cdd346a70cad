"""Classes that hints name, described as data: records, enums, named tuples and TypedDicts.

The gate sends only the plain data of their values. A generated library has its own classes with the
same names and fields, made from these descriptions, so it needs none of the server's code. The
server builds the real classes in `_convert`.
"""

# Values of any type are the subject here, and narrowing by exact type leaves parts unknown.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import ast
import dataclasses
import enum
import keyword
import sys
import typing
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ._hints import ANY, Hint, UnsupportedHintError
from ._pack import enum_value, is_literal

if TYPE_CHECKING:
    from ._annotations import Parser

TypeKind = Literal["record", "tuple", "dict", "enum"]
DEFAULT_ON_SERVER = "..."
"""Stands for a default that stays on the server, because it is not a literal."""
ENUM_BASES = ("", "int", "str", "flag", "int_flag")
_MAX_DEFAULT = 500


@dataclass(slots=True, eq=False)
class Field:
    """A field of a record, or a member of an enum.

    Attributes:
        name: Its name.
        hint: Its type; unused for a member of an enum.
        default: None if it is required; else Python source of a literal, or `DEFAULT_ON_SERVER`.
        init: Whether the constructor takes it.
    """

    name: str
    hint: Hint
    _: KW_ONLY
    default: str | None = None
    init: bool = True


@dataclass(slots=True, eq=False)
class TypeDef:
    """A class as both sides of the gate know it.

    Attributes:
        name: Its name in hints.
        kind: `record` (any class with fields), `tuple` (a NamedTuple), `dict` (a TypedDict) or
            `enum`.
        fields: Its fields; for an enum its members, whose `default` is the value.
        doc: Its docstring.
        base: For an enum, the base besides `Enum`: one of `ENUM_BASES`.
        cls: The class itself, on the server.
    """

    name: str
    kind: TypeKind
    fields: tuple[Field, ...]
    _: KW_ONLY
    doc: str = ""
    base: str = ""
    cls: type | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON form, without the class."""
        fields = [[f.name, f.hint.to_json(), f.default, f.init] for f in self.fields]
        base = {"base": self.base} if self.base else {}
        return {"kind": self.kind, "doc": self.doc, "fields": fields, **base}

    @classmethod
    def from_json(cls, name: str, found: dict[str, Any]) -> TypeDef:
        """Read what `to_json` wrote.

        Raises:
            ValueError: It is malformed.
        """
        if found["kind"] not in get_args(TypeKind):
            raise ValueError(f"unknown kind of type {found['kind']!r}")
        base = found.get("base", "")
        if base not in ENUM_BASES:
            raise ValueError(f"unknown base of an enum {base!r}")
        fields = [
            Field(
                str(field) if found["kind"] == "dict" else check_name(field),
                Hint.from_json(hint),
                default=check_default(default),
                init=bool(init),
            )
            for field, hint, default, init in found["fields"]
        ]
        return cls(check_name(name), found["kind"], tuple(fields), doc=str(found["doc"]), base=base)


def check_name(name: Any) -> str:
    """Check a name.

    Raises:
        ValueError: It is not a Python identifier.
    """
    if type(name) is not str or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is not a Python name")
    return name


def check_default(text: Any) -> str | None:
    """Check the source of a default, and normalize it.

    Raises:
        ValueError: It is not a literal.
    """
    if text is None or text == DEFAULT_ON_SERVER:
        return text
    try:
        return repr(ast.literal_eval(text))
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"the default {text!r} is not a literal: {error}") from None


def describe_classes(parser: Parser) -> dict[str, TypeDef]:
    """Describe all classes that the parser has found, and those that their fields name.

    Raises:
        UnsupportedHintError: The gate does not support the hint of a field.
    """
    done: dict[str, TypeDef] = {}
    while pending := [name for name in parser.classes if name not in done]:
        for name in pending:
            done[name] = _describe(parser, name, parser.classes[name])
    return done


def _describe(parser: Parser, name: str, cls: Any) -> TypeDef:
    doc = cls.__dict__.get("__doc__") or ""
    if issubclass(cls, enum.Enum):
        members = [Field(m.name, ANY, default=repr(enum_value(m))) for m in cls]
        return TypeDef(name, "enum", tuple(members), doc=doc, base=_enum_base(cls), cls=cls)
    if hasattr(cls, "__required_keys__"):
        return TypeDef(name, "dict", _typed_dict_fields(parser, cls), doc=doc, cls=cls)
    if issubclass(cls, tuple):
        return TypeDef(name, "tuple", _tuple_fields(parser, cls), doc=_own_doc(cls, doc), cls=cls)
    return TypeDef(name, "record", _record_fields(parser, cls), doc=_own_doc(cls, doc), cls=cls)


def _enum_base(cls: type) -> str:
    if issubclass(cls, enum.Flag):
        return "int_flag" if issubclass(cls, int) else "flag"
    return "int" if issubclass(cls, int) else "str" if issubclass(cls, str) else ""


def _tuple_fields(parser: Parser, cls: Any) -> tuple[Field, ...]:
    defaults: dict[str, Any] = cls._field_defaults
    names: tuple[str, ...] = cls._fields
    return _fields(parser, cls, [(f, f in defaults, defaults.get(f), True) for f in names])


def _own_doc(cls: Any, doc: str) -> str:
    """The docstring, unless it is the signature that dataclasses and named tuples generate."""
    return "" if doc.startswith(f"{cls.__name__}(") else doc


def _record_fields(parser: Parser, cls: Any) -> tuple[Field, ...]:
    missing: Any
    if hasattr(cls, "__dataclass_fields__"):
        missing = dataclasses.MISSING
        found = [
            (
                f.name,
                f.default is not missing or f.default_factory is not missing,
                _made(f.default, f.default_factory, missing),
                f.init,
            )
            for f in dataclasses.fields(cls)
        ]
        return _fields(parser, cls, found)
    if hasattr(cls, "__attrs_attrs__"):
        missing = sys.modules["attr"].NOTHING
        found = [(a.name, a.default is not missing, a.default, a.init) for a in cls.__attrs_attrs__]
        return _fields(parser, cls, found)
    if hasattr(cls, "__struct_fields__"):
        msgspec: Any = sys.modules["msgspec"]
        found = [(f.name, not f.required, f.default, True) for f in msgspec.structs.fields(cls)]
    else:
        pydantic_fields = cls.__pydantic_fields__.items()
        found = [(name, not f.is_required(), f.default, True) for name, f in pydantic_fields]
    # These libraries check their fields themselves, so unsupported hints are allowed.
    return _fields(parser, cls, found, lenient=True)


def _made(default: Any, factory: Any, missing: Any) -> Any:
    """The default of a dataclass's field; for `list` and `dict` factories, what they make."""
    return factory() if default is missing and factory in (list, dict) else default


def _fields(
    parser: Parser, cls: Any, found: list[tuple[str, bool, Any, bool]], *, lenient: bool = False
) -> tuple[Field, ...]:
    annotations = _annotations(cls)
    fields: list[Field] = []
    for name, optional, default, init in found:
        try:
            hint = parser.parse(annotations.get(name, object), vars(sys.modules[cls.__module__]))
        except UnsupportedHintError as error:
            if not lenient:
                raise UnsupportedHintError(f"field {name!r} of {cls.__name__}: {error}") from None
            hint = ANY
        text = default_text(default) if optional else None
        fields.append(Field(name, hint, default=text, init=init))
    return tuple(fields)


def _typed_dict_fields(parser: Parser, cls: Any) -> tuple[Field, ...]:
    fields: list[Field] = []
    for name, annotation in _annotations(cls).items():
        # With postponed annotations, the class itself does not know about NotRequired.
        word = getattr(getattr(annotation, "__origin__", None), "_name", "")
        required = name in cls.__required_keys__ if word not in _PRESENCE else word == "Required"
        try:
            hint = parser.parse(annotation, vars(sys.modules[cls.__module__]))
        except UnsupportedHintError as error:
            raise UnsupportedHintError(f"key {name!r} of {cls.__name__}: {error}") from None
        fields.append(Field(name, hint, default=None if required else DEFAULT_ON_SERVER))
    return tuple(fields)


_PRESENCE = frozenset({"Required", "NotRequired"})


def _annotations(cls: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise UnsupportedHintError(
            f"the hints of {cls.__name__} cannot be resolved ({type(error).__name__}: {error})"
        ) from None


def default_text(value: Any) -> str:
    """Source text of a default: a literal, or `DEFAULT_ON_SERVER`."""
    if is_literal(value):
        text = repr(value)
        return text if len(text) <= _MAX_DEFAULT else DEFAULT_ON_SERVER
    return DEFAULT_ON_SERVER
