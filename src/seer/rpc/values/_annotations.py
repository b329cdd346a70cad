"""Turns annotations into hints.

The libraries that annotations may name (numpy, torch, pandas, PIL, pydantic ...) are not imported
here: an annotation that names one has already loaded it.
"""

from __future__ import annotations

import enum
import sys
import typing
from typing import Any

from ._hints import ANY, CONTAINERS, SIMPLE, Hint, UnsupportedHintError, literal_hint
from ._kinds import KINDS
from ._pack import type_name

_ABSTRACT = {
    "Sequence": "sequence",
    "MutableSequence": "list",
    "Collection": "sequence",
    "Iterable": "sequence",
    "Mapping": "mapping",
    "MutableMapping": "dict",
    "Set": "frozenset",
    "MutableSet": "set",
}
_STREAMS = frozenset({"Iterator", "Generator", "AsyncIterator", "AsyncGenerator", "AsyncIterable"})


class Parser:
    """Turns annotations into hints, and remembers the classes that they name.

    Attributes:
        classes: The record classes and enums that it found, by their names in hints.
    """

    def __init__(self) -> None:
        self.classes: dict[str, type] = {}

    def parse(self, annotation: Any, names: dict[str, Any]) -> Hint:
        """The hint for an annotation. Annotations that are text are evaluated in `names`.

        Raises:
            UnsupportedHintError: The gate does not support it.
        """
        annotation = resolve(annotation, names)
        if _hashable(annotation) and (kind := SIMPLE.get(annotation)) is not None:
            return Hint(kind)
        if _hashable(annotation) and (kind := CONTAINERS.get(annotation)) is not None:
            return Hint("tuple_of", (ANY,)) if kind == "tuple" else Hint(kind)
        if isinstance(annotation, type) and not hasattr(annotation, "__origin__"):
            return self._parse_class(annotation)
        return self._parse_form(annotation, names)

    def stream_item(self, annotation: Any, names: dict[str, Any]) -> Hint:
        """The hint of the items that a generator with this return annotation yields.

        Raises:
            UnsupportedHintError: It is not the annotation of a generator.
        """
        annotation = resolve(annotation, names)
        if not self.is_stream(annotation, or_iterable=True):
            raise UnsupportedHintError("a generator returns Iterator[...] of the type it yields")
        args = getattr(annotation, "__args__", ())
        return self.parse(args[0], names) if args else ANY

    def is_stream(self, annotation: Any, *, or_iterable: bool = False) -> bool:
        """Whether this is `Iterator[...]`, `Generator[...]` or an async form of them."""
        origin = getattr(annotation, "__origin__", annotation)
        name = getattr(origin, "__name__", "")
        return name in _STREAMS or (or_iterable and name == "Iterable")

    def _parse_class(self, cls: type) -> Hint:
        kind = _known_kind(cls)
        if kind is not None:
            return Hint(kind)
        if is_named(cls):
            return Hint("named", detail=self._name(cls))
        if cls is typing.Any:
            return ANY
        raise UnsupportedHintError(
            f"{describe(cls)} is a class the gate cannot build; use plain values, a dataclass, a "
            "TypedDict, an array, or Handle for what stays on the server"
        )

    def _parse_form(self, annotation: Any, names: dict[str, Any]) -> Hint:
        """The hint for an annotation that is not a plain class: a union, a generic, a literal."""
        origin = getattr(annotation, "__origin__", None)
        args: Any = getattr(annotation, "__args__", ())
        if hasattr(annotation, "__metadata__"):
            return self.parse(origin, names)
        if hasattr(annotation, "__supertype__"):
            return self.parse(annotation.__supertype__, names)
        if hasattr(annotation, "__value__"):
            return self.parse(_alias_value(annotation), names)
        if type(annotation).__name__ in ("UnionType", "Union") or origin is typing.Union:
            return self._union([self.parse(arg, names) for arg in args])
        if origin is typing.Literal:
            return literal_hint(args)
        for name in ("Required", "NotRequired", "ReadOnly", "Final"):
            if _is(typing, name, origin) or _is(sys.modules.get("typing_extensions"), name, origin):
                return self.parse(args[0], names)
        if annotation is typing.LiteralString:
            return Hint("str")
        if isinstance(origin, type):
            return self._parse_generic(annotation, origin, args, names)
        raise UnsupportedHintError(f"{describe(annotation)} cannot be checked by the gate")

    def _parse_generic(
        self, annotation: Any, origin: type, args: tuple[Any, ...], names: dict[str, Any]
    ) -> Hint:
        kind = CONTAINERS.get(origin)
        if kind == "tuple":
            if len(args) == 2 and args[1] is Ellipsis:
                return Hint("tuple_of", (self.parse(args[0], names),))
            if not args and annotation is typing.Tuple:  # noqa: UP006 (the bare alias)
                return Hint("tuple_of", (ANY,))
            return Hint("tuple", tuple(self.parse(arg, names) for arg in args))
        kind = kind or _known_kind(origin)
        if kind == "ndarray":
            return Hint("ndarray", detail=_array_dtype(args))
        if kind in ("handle", "series", "frame"):
            return Hint(kind)
        if kind is None:
            raise UnsupportedHintError(f"{describe(annotation)} cannot be checked by the gate")
        return Hint(kind, tuple(self.parse(arg, names) for arg in args))

    def _union(self, hints: list[Hint]) -> Hint:
        flat: list[Hint] = []
        for hint in hints:
            flat.extend(hint.args if hint.kind == "union" else (hint,))
        return Hint("union", tuple(flat))

    def _name(self, cls: type) -> str:
        """The class's own name, with a number if another class has the same name."""
        base = name = cls.__name__
        number = 2
        while self.classes.setdefault(name, cls) is not cls:
            name, number = f"{base}{number}", number + 1
        return name


def resolve(annotation: Any, names: dict[str, Any]) -> Any:
    """Evaluate an annotation that is text.

    Raises:
        UnsupportedHintError: The text cannot be evaluated here.
    """
    text = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(text, str):
        return annotation
    try:
        # This is the author's own source text, evaluated in its own module; not foreign input.
        return resolve(eval(text, names), names)
    except Exception as error:
        raise UnsupportedHintError(
            f"{text!r} cannot be resolved ({type(error).__name__}: {error}); import what it names "
            "at the top level of the file, not under TYPE_CHECKING"
        ) from None


def is_named(cls: type) -> bool:
    """Whether the gate can describe a class: a record, an enum, a named tuple or a TypedDict."""
    marks = ("__dataclass_fields__", "__attrs_attrs__", "__struct_fields__", "__pydantic_fields__")
    if any(hasattr(cls, mark) for mark in (*marks, "__required_keys__")):
        return True
    if tuple in cls.__mro__ and hasattr(cls, "_fields"):
        return True
    return issubclass(cls, enum.Enum)


def annotation_note(annotation: Any) -> str:
    """The description in `Annotated[int, "which layer"]`, or of a pydantic `Field`; else empty."""
    for note in getattr(annotation, "__metadata__", ()):
        text = note if isinstance(note, str) else getattr(note, "description", None)
        if isinstance(text, str):
            return text
    return ""


def describe(annotation: Any) -> str:
    """An annotation as its author would write it."""
    if isinstance(annotation, type) and not hasattr(annotation, "__origin__"):
        return type_name(annotation)
    return repr(annotation)


def _known_kind(cls: type) -> str | None:
    """The kind of a class that is known by its module and name."""
    if cls.__module__ in ("collections.abc", "typing"):
        return _ABSTRACT.get(cls.__name__)
    if getattr(cls, "__seer_handle__", False):
        return "handle"
    return next((kind.name for kind in KINDS if kind.has_class(cls)), None)


def _alias_value(alias: Any) -> Any:
    """The annotation that an alias made with `type X[T] = ...` stands for, with its arguments."""
    definition = getattr(alias, "__origin__", alias)
    value = definition.__value__
    given = dict(zip(definition.__type_params__, getattr(alias, "__args__", ()), strict=False))
    open_ones = getattr(value, "__parameters__", ())
    if not given or not open_ones:
        return value
    return value[tuple(given[parameter] for parameter in open_ones)]


def _is(module: Any, name: str, value: Any) -> bool:
    return value is not None and value is getattr(module, name, None)


def _hashable(annotation: Any) -> bool:
    try:
        hash(annotation)
    except TypeError:
        return False
    return True


def _array_dtype(args: tuple[Any, ...]) -> str | None:
    """The dtype in `NDArray[np.float32]`; None if it is abstract or has no fixed width."""
    numpy = sys.modules["numpy"]
    inner = getattr(args[1], "__args__", ()) if len(args) == 2 else ()
    scalar: Any = inner[0] if inner else None
    if scalar is numpy.object_:
        raise UnsupportedHintError("arrays of objects cannot be sent")
    concrete = set(numpy.sctypeDict.values())
    if scalar not in concrete or issubclass(scalar, numpy.flexible):
        return None
    return numpy.dtype(scalar).str
