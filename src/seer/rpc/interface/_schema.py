"""The schema of an interface: its functions, their parameters and the classes they name.

Argument checks on the server, the importable library, MCP tools, prompts and skills are all made
from it. It is sent from the sandbox to the controller as JSON. There it is input from another
machine, so `Schema.from_json` checks every name and default before any of it can become part of
generated code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from seer.errors import ArgumentError
from seer.rpc.values._convert import EXACT, Compiler, Mismatch
from seer.rpc.values._hints import Hint, UnsupportedHintError
from seer.rpc.values._types import TypeDef, check_default, check_name

from ._expose import Options

if TYPE_CHECKING:
    from seer.rpc.values._convert import Convert

    Bind = Callable[[list[Any], dict[str, Any]], tuple[list[Any], dict[str, Any]]]

ParameterKind = Literal[
    "positional_only", "positional_or_keyword", "var_positional", "keyword_only", "var_keyword"
]
SCHEMA_VERSION = 1
_MALFORMED = (
    AttributeError,
    KeyError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    UnsupportedHintError,
)


@dataclass(slots=True, eq=False)
class Parameter:
    """One parameter, as a caller sees it.

    Attributes:
        name: Its name.
        kind: As in `inspect.Parameter`, in lower case.
        hint: Its type. For a batched parameter, the type of one item.
        default: None if it is required; else Python source of a literal, or `DEFAULT_ON_SERVER`
            for a default that stays on the server.
        note: The description in `Annotated[..., "..."]`, or empty.
        batched: Whether the function gets a list with the values of all calls of a batch.
    """

    name: str
    kind: ParameterKind
    hint: Hint
    _: KW_ONLY
    default: str | None = None
    note: str = ""
    batched: bool = False

    def to_json(self) -> dict[str, Any]:
        """A JSON form."""
        return {
            "name": self.name,
            "kind": self.kind,
            "hint": self.hint.to_json(),
            "default": self.default,
            "note": self.note,
            "batched": self.batched,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Parameter:
        """Read what `to_json` wrote.

        Raises:
            ValueError: It is malformed.
        """
        if found["kind"] not in get_args(ParameterKind):
            raise ValueError(f"unknown kind of parameter {found['kind']!r}")
        return cls(
            check_name(found["name"]),
            found["kind"],
            Hint.from_json(found["hint"]),
            default=check_default(found["default"]),
            note=str(found["note"]),
            batched=bool(found["batched"]),
        )


@dataclass(slots=True, eq=False)
class Function:
    """An exposed function.

    Attributes:
        name: Its name.
        doc: Its docstring as written, or empty.
        parameters: Its parameters, in order.
        returns: The type of its result, or of the items of a generator; `any` without a hint.
        is_async: Whether it is a coroutine function or an async generator.
        is_generator: Whether its results are streamed.
        options: The options of `@expose(...)`.
        types: The classes that hints name.
        target: The function itself, on the server.
        line: The line of its definition.
        item_defaults: For batched functions: the values of parameters that a call leaves out.
    """

    name: str
    parameters: tuple[Parameter, ...]
    returns: Hint
    _: KW_ONLY
    doc: str = ""
    is_async: bool = False
    is_generator: bool = False
    options: Options = field(default_factory=Options)
    types: dict[str, TypeDef] = field(default_factory=dict)
    target: Callable[..., Any] | None = None
    line: int = 0
    item_defaults: dict[str, Any] = field(default_factory=dict)
    _binders: dict[bool, Binder] = field(init=False, default_factory=dict)

    def bind(
        self, args: list[Any], kwargs: dict[str, Any], *, plain: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        """Check and convert the arguments of a call; defaults are left to the function itself.

        Args:
            args: The positional arguments; may be changed in place.
            kwargs: The keyword arguments.
            plain: Whether they come from a peer that has only JSON, so that base64 text may stand
                for bytes and the like.

        Raises:
            ArgumentError: They do not fit. The message has the function, the parameter, the value
                and what was expected.
        """
        return self.binder(plain=plain)(args, kwargs)

    def binder(self, *, plain: bool) -> Bind:
        """The function that `bind` calls for one kind of peer."""
        found = self._binders.get(plain)
        if found is None:
            found = self._binders[plain] = Binder(self, plain=plain)
        return found.bind

    def signature(
        self,
        *,
        hint_text: Callable[[Hint], str] = str,
        default_text: Callable[[str], str] = str,
    ) -> str:
        """The signature as source: `f(text: str, *, layer: int = 3) -> dict`.

        Args:
            hint_text: How hints are written.
            default_text: How defaults are written.
        """
        parts: list[str] = []
        previous = "positional_only"
        for parameter in self.parameters:
            kind = parameter.kind
            if previous == "positional_only" and kind != "positional_only" and parts:
                parts.append("/")
            if kind == "keyword_only" and previous not in ("keyword_only", "var_positional"):
                parts.append("*")
            star = {"var_positional": "*", "var_keyword": "**"}.get(kind, "")
            text = f"{star}{parameter.name}: {hint_text(parameter.hint)}"
            if parameter.default is not None:
                text += f" = {default_text(parameter.default)}"
            parts.append(text)
            previous = kind
        if previous == "positional_only" and parts:
            parts.append("/")
        returns = hint_text(self.returns)
        if self.is_generator:
            returns = f"Iterator[{returns}]"
        return f"{self.name}({', '.join(parts)}) -> {returns}"

    def to_json(self) -> dict[str, Any]:
        """A JSON form, without the function itself."""
        return {
            "name": self.name,
            "doc": self.doc,
            "parameters": [parameter.to_json() for parameter in self.parameters],
            "returns": self.returns.to_json(),
            "is_async": self.is_async,
            "is_generator": self.is_generator,
            "options": self.options.to_json(),
        }

    @classmethod
    def from_json(cls, found: dict[str, Any], types: dict[str, TypeDef]) -> Function:
        """Read what `to_json` wrote.

        Raises:
            ValueError: It is malformed.
        """
        return cls(
            check_name(found["name"]),
            tuple(map(Parameter.from_json, found["parameters"])),
            Hint.from_json(found["returns"]),
            doc=str(found["doc"]),
            is_async=bool(found["is_async"]),
            is_generator=bool(found["is_generator"]),
            options=Options(**found["options"]),
            types=types,
        )


@dataclass(slots=True, eq=False)
class Schema:
    """An interface as data.

    Attributes:
        name: The interface's name.
        doc: The module's docstring.
        functions: The functions by name, in the order of the file.
        types: The classes that hints name.
        source_hash: SHA-256 of the file; empty for callers.
    """

    name: str
    functions: dict[str, Function]
    _: KW_ONLY
    types: dict[str, TypeDef] = field(default_factory=dict)
    doc: str = ""
    source_hash: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON form."""
        return {
            "version": SCHEMA_VERSION,
            "name": self.name,
            "doc": self.doc,
            "source_hash": self.source_hash,
            "types": {name: definition.to_json() for name, definition in self.types.items()},
            "functions": [function.to_json() for function in self.functions.values()],
        }

    @classmethod
    def from_json(cls, found: Any) -> Schema:
        """Read what `to_json` wrote.

        Raises:
            ValueError: It is not a schema, or of another version.
        """
        try:
            if found["version"] != SCHEMA_VERSION:
                raise ValueError(
                    f"the schema has version {found['version']!r}; this Seer reads {SCHEMA_VERSION}"
                )
            types = {name: TypeDef.from_json(name, d) for name, d in found["types"].items()}
            functions = [Function.from_json(f, types) for f in found["functions"]]
            schema = cls(
                check_name(found["name"]),
                {function.name: function for function in functions},
                types=types,
                doc=str(found["doc"]),
                source_hash=str(found.get("source_hash", "")),
            )
        except _MALFORMED as error:
            raise ValueError(f"not the schema of an interface: {error!r}") from None
        schema.check_references()
        return schema

    def check_references(self) -> None:
        """Check that `types` has every class that a hint names.

        Raises:
            ValueError: A class is missing.
        """
        hints = [f.hint for definition in self.types.values() for f in definition.fields]
        for function in self.functions.values():
            hints.extend([function.returns, *(p.hint for p in function.parameters)])
        for hint in hints:
            for inner in hint.walk():
                if inner.kind == "named" and inner.detail not in self.types:
                    raise ValueError(f"the class {inner.detail!r} is not described")


def for_callers(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema in its JSON form, without what callers must not see.

    With the digest of the file, a caller could verify a guess, such as a hidden model's name.
    """
    return {key: value for key, value in schema.items() if key != "source_hash"}


class Binder:
    """Binds the arguments of one function's calls to its parameters, and checks and converts them.

    A binder is compiled once per function, because it is part of every call. The rules are Python's
    own, with more detailed messages. Defaults are left to the function.
    """

    __slots__ = (
        "_exact",
        "_keywords",
        "_name",
        "_positional",
        "_positional_names",
        "_required",
        "_rest",
        "_rest_keywords",
    )

    def __init__(self, function: Function, *, plain: bool) -> None:
        compiler = Compiler(function.types, plain=plain)
        self._name = function.name
        self._positional: list[tuple[str, type | None, Convert]] = []
        self._keywords: dict[str, tuple[type | None, Convert]] = {}
        self._required: list[tuple[int, str]] = []
        self._rest: tuple[str, Convert] | None = None
        self._rest_keywords: Convert | None = None
        for index, parameter in enumerate(function.parameters):
            self._add(index, parameter, compiler)
        self._positional_names = {name: i for i, (name, _, _) in enumerate(self._positional)}
        needs_names = any(place < 0 for place, _ in self._required)
        self._exact = None if needs_names else [exact for _, exact, _ in self._positional]
        """The types of positional arguments that need no conversion; None if a name is required."""

    def _add(self, index: int, parameter: Parameter, compiler: Compiler) -> None:
        name, kind = parameter.name, parameter.kind
        convert, exact = compiler.compile(parameter.hint), EXACT.get(parameter.hint.kind)
        if kind == "var_positional":
            self._rest = (name, convert)
            return
        if kind == "var_keyword":
            self._rest_keywords = convert
            return
        if kind != "keyword_only":
            self._positional.append((name, exact, convert))
        if kind != "positional_only":
            self._keywords[name] = (exact, convert)
        if parameter.default is None:
            self._required.append((index if kind != "keyword_only" else -1, name))

    def bind(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The checked and converted arguments.

        Raises:
            ArgumentError: They do not fit the parameters.
        """
        if not kwargs and list(map(type, args)) == self._exact:
            return args, kwargs
        given = len(args)
        positional = self._positional
        if given > len(positional):
            self._bind_rest(args)
        for index, (name, exact, convert) in enumerate(positional):
            if index == given:
                break
            value = args[index]
            if type(value) is not exact:
                args[index] = self._convert(name, convert, value)
        if kwargs:
            kwargs = self._bind_keywords(given, kwargs)
        for place, name in self._required:
            if not (0 <= place < given or name in kwargs):
                raise ArgumentError(f"{self._name}() needs an argument for {name!r}")
        return args, kwargs

    def _bind_rest(self, args: list[Any]) -> None:
        count = len(self._positional)
        if self._rest is None:
            raise ArgumentError(
                f"{self._name}() takes {count} positional argument{'s' * (count != 1)}, but "
                f"{len(args)} were given"
            )
        name, convert = self._rest
        for i in range(count, len(args)):
            args[i] = self._convert(f"*{name}[{i - count}]", convert, args[i])

    def _bind_keywords(self, given: int, kwargs: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, value in kwargs.items():
            known = self._keywords.get(name)
            if known is None:
                if self._rest_keywords is None:
                    raise self._unexpected(name)
                exact, convert = None, self._rest_keywords
            else:
                exact, convert = known
                if self._positional_names.get(name, given) < given:
                    raise ArgumentError(f"{self._name}() got two values for {name!r}")
            out[name] = value if type(value) is exact else self._convert(name, convert, value)
        return out

    def _unexpected(self, name: str) -> ArgumentError:
        if name in self._positional_names:
            return ArgumentError(f"{self._name}() takes {name!r} by position only")
        names = [*self._positional_names, *self._keywords]
        known = ", ".join(dict.fromkeys(names)) or "no arguments"
        return ArgumentError(f"{self._name}() has no parameter {name!r}; it takes {known}")

    def _convert(self, name: str, convert: Convert, value: Any) -> Any:
        try:
            return convert(value)
        except Mismatch as problem:
            where = "".join(problem.path)
            raise ArgumentError(f"{self._name}() parameter {name!r}{where}: {problem}") from None
        except RecursionError:
            raise ArgumentError(f"{self._name}() parameter {name!r}: nested too deeply") from None
