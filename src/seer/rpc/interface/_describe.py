"""Describes exposed functions: makes the schema from Python functions."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

from seer.errors import ServeError
from seer.rpc.values._annotations import Parser, annotation_note, resolve
from seer.rpc.values._convert import Compiler, Mismatch
from seer.rpc.values._hints import ANY, Hint, UnsupportedHintError, literal_hint
from seer.rpc.values._kinds import KINDS
from seer.rpc.values._types import (
    DEFAULT_ON_SERVER,
    Field,
    TypeDef,
    default_text,
    describe_classes,
)

from ._expose import Options, unwrap
from ._schema import Function, Parameter, ParameterKind

_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

RESERVED = frozenset({"budget", "last_call"})
"""Names that a generated library defines itself."""
_TYPE_NAMES = frozenset(
    {"bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object", "set"}
    | {"str", "tuple", "type", "Any", "Handle", "Iterator", "Literal", "Mapping", "Sequence"}
    | {kind.root for kind in KINDS}
)
"""Names that the hints in a generated library use."""
_MISSING = inspect.Parameter.empty


def describe_functions(
    path: str, exposed: Sequence[tuple[Callable[..., Any], Options]], warnings: list[str]
) -> tuple[dict[str, Function], dict[str, TypeDef]]:
    """Describe the functions of a file, and the classes that their hints name.

    Raises:
        ServeError: There are problems; the error lists all of them.
    """
    parser = Parser()
    first_line = exposed[0][0].__code__.co_firstlineno
    functions: dict[str, Function] = {}
    problems: list[tuple[int, str]] = []
    for target, options in exposed:
        reader = _Reader(target, options, parser)
        known = functions.get(reader.name)
        if known is not None and known.target is not target:
            reader.problems.append(
                f"{reader.name}() is exposed twice; the first is in line {known.line}"
            )
        function = reader.describe()
        functions.setdefault(reader.name, function)
        problems.extend((reader.line, text) for text in reader.problems)
        warnings.extend(f"{reader.line}: {text}" for text in reader.warnings)
    try:
        types = describe_classes(parser)
    except UnsupportedHintError as error:
        raise _serve_error(path, [*problems, (first_line, str(error))]) from None
    for name in sorted(types.keys() & (functions.keys() | _TYPE_NAMES | RESERVED)):
        line = functions.get(name, next(iter(functions.values()))).line
        problems.append((line, f"the class {name} in a hint needs another name; {name!r} is taken"))
    if problems:
        raise _serve_error(path, problems)
    for definition in types.values():
        # pydantic and msgspec check the fields of their classes, and know their defaults.
        foreign = hasattr(definition.cls, "__pydantic_fields__") or hasattr(
            definition.cls, "__struct_fields__"
        )
        for field in definition.fields if definition.kind in ("record", "tuple") else ():
            told = _accept_default(field, types, stays=foreign)
            if told:
                where = f"the default of field {field.name!r} of {definition.name}"
                warnings.append(f"{first_line}: {where} {told}")
    for function in functions.values():
        function.types = types
        for parameter in function.parameters:
            told = _accept_default(parameter, types)
            if told:
                where = f"{function.name}(): the default of {parameter.name!r}"
                warnings.append(f"{function.line}: {where} {told}")
    return functions, types


def _serve_error(path: str, problems: list[tuple[int, str]]) -> ServeError:
    (line, text), *more = problems
    text += "".join(f"\n  line {at}: {other}" for at, other in more)
    return ServeError(text, file=path, line=line)


def _accept_default(
    place: Parameter | Field, types: dict[str, TypeDef], *, stays: bool = False
) -> str:
    """Make a parameter or field accept its own default; a warning if its hint does not allow it.

    Clients send a default as if the caller had given it, and agents read it in the signature. So
    the hint is widened by the default. A default that no hint can express stays on the server.
    """
    if place.default is None or place.default == DEFAULT_ON_SERVER:
        return ""
    value, hint = ast.literal_eval(place.default), place.hint
    try:
        Compiler(types).compile(hint)(value)
    except Mismatch:
        written = place.default
        if value is None and not stays:
            place.hint = Hint("union", (hint, Hint("none")))
        elif type(value) in (str, int, bool) and not stays:
            place.hint = Hint("union", (hint, literal_hint((value,))))
        else:
            place.default = DEFAULT_ON_SERVER
        advice = f"; write {place.hint}" if place.hint is not hint else ""
        return f"is {written}, but its hint is {hint}{advice}"
    return ""


class _Reader:
    """Reads one function."""

    def __init__(self, target: Any, options: Options, parser: Parser) -> None:
        self.target = target
        self.options = options
        self.parser = parser
        self.inner = unwrap(target)
        self.code = self.inner.__code__
        self.name: str = target.__name__
        self.line: int = self.code.co_firstlineno
        self.names: dict[str, Any] = self.inner.__globals__
        self.annotations: dict[str, Any] = self.inner.__annotations__
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.defaults: dict[str, Any] = {}
        self.item_defaults: dict[str, Any] = {}

    def describe(self) -> Function:
        self._check_name()
        flags = self.code.co_flags | self.target.__code__.co_flags
        streams, returns = self._returns(bool(flags & _GENERATOR))
        signature = inspect.signature(self.inner, follow_wrapped=False)
        parameters = [self._parameter(found) for found in signature.parameters.values()]
        if self.options.batch > 1:
            returns = self._batch(parameters, streams, returns)
        return Function(
            self.name,
            tuple(parameters),
            returns,
            doc=self.target.__doc__ or "",
            is_async=bool(flags & _ASYNC),
            is_generator=streams,
            options=self.options,
            target=self.target,
            line=self.line,
            item_defaults=self.item_defaults,
        )

    def _check_name(self) -> None:
        name = self.name
        if name.startswith("_"):
            self.problems.append(f"{name}() is exposed, but its name says that it is private")
        elif name in RESERVED or name in _TYPE_NAMES:
            self.problems.append(f"{name}() needs another name; {name!r} is taken in the library")
        elif not name.isidentifier():
            self.problems.append(f"{name!r} is not a name that a caller could write")
        elif not name.isascii():
            self.problems.append(
                f"{name}() needs a name of plain letters (a to z), digits and _: it is a part of "
                "addresses and the name of a tool"
            )

    def _parameter(self, found: inspect.Parameter) -> Parameter:
        name, default = found.name, found.default
        kind = cast("ParameterKind", found.kind.name.lower())
        hint, note = ANY, ""
        if name not in self.annotations:
            star = {"var_positional": "*", "var_keyword": "**"}.get(kind, "")
            advice = "; decorate with functools.wraps, or add hints" if star else ""
            self.problems.append(
                f"{self.name}(): parameter {star + name!r} has no type hint{advice}"
            )
        else:
            try:
                hint = self.parser.parse(self.annotations[name], self.names)
                note = annotation_note(resolve(self.annotations[name], self.names))
            except UnsupportedHintError as error:
                self.problems.append(f"{self.name}(): the hint of parameter {name!r}: {error}")
        self.defaults[name] = default
        text = None if default is _MISSING else default_text(default)
        return Parameter(name, kind, hint, default=text, note=note)

    def _returns(self, streams: bool) -> tuple[bool, Hint]:
        """Whether results are streamed, and the hint of a result (or of one item)."""
        annotation = self.annotations.get("return", _MISSING)
        if annotation is _MISSING:
            self.warnings.append(
                f"{self.name}() has no return hint; any sendable value may come back"
            )
            return streams, ANY
        try:
            if streams:
                return True, self.parser.stream_item(annotation, self.names)
            annotation = resolve(annotation, self.names)
            if self.parser.is_stream(annotation):
                # A plain function that returns the generator of another one.
                return True, self.parser.stream_item(annotation, self.names)
            if getattr(annotation, "_name", "") in ("NoReturn", "Never"):
                return False, Hint("none")
            return False, self.parser.parse(annotation, self.names)
        except UnsupportedHintError as error:
            self.problems.append(f"{self.name}(): the return hint: {error}")
            return streams, ANY

    def _item_default(self, parameter: Parameter) -> None:
        """Read the default of a batched parameter: the item for a call that leaves it out."""
        default = self.defaults[parameter.name]
        if default.__class__ is not tuple or len(default) != 1:
            self.problems.append(
                f"{self.name}(): {parameter.name!r} is batched, so its default must be a tuple of "
                f"one item, for calls that leave it out; not {default!r}"
            )
            return
        self.item_defaults[parameter.name] = default[0]
        parameter.default = default_text(default[0])

    def _batch(self, parameters: list[Parameter], streams: bool, returns: Hint) -> Hint:
        """Turn the hints of a function over lists into the hints of one call."""
        if streams:
            self.problems.append(f"{self.name}(): a generator cannot be batched")
        if (self.options.max_concurrency or 1) > 1 and self.code.co_flags & _ASYNC:
            self.problems.append(
                f"{self.name}(): batch= and max_concurrency= do not go together for an async "
                "function; its batches run one at a time"
            )
        for parameter in parameters:
            if parameter.kind in ("var_positional", "var_keyword"):
                self.problems.append(f"{self.name}(): *args and **kwargs cannot be batched")
            elif parameter.hint.kind in ("list", "sequence"):
                parameter.batched = True
                parameter.hint = parameter.hint.args[0] if parameter.hint.args else ANY
                if parameter.default is not None:
                    self._item_default(parameter)
            elif parameter.kind == "positional_only" and parameter.default is not None:
                # A batch passes positional-only parameters by position, so each needs a value.
                self.item_defaults[parameter.name] = self.defaults[parameter.name]
        if not any(parameter.batched for parameter in parameters):
            self.problems.append(
                f"{self.name}(): with batch={self.options.batch} at least one parameter must be a "
                "list[...] that takes one item from each call"
            )
        if returns.kind in ("list", "sequence"):
            return returns.args[0] if returns.args else ANY
        if returns.kind != "any":
            self.problems.append(
                f"{self.name}(): with batch={self.options.batch} it must return a list with one "
                f"item per call, not {returns}"
            )
        return returns
