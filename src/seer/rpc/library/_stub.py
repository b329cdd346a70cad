"""The generated library: a real Python package whose functions call through the gate."""

from __future__ import annotations

import inspect
import re

from seer.rpc.interface._schema import Function, Parameter, Schema
from seer.rpc.values._hints import Hint
from seer.rpc.values._kinds import KINDS
from seer.rpc.values._types import DEFAULT_ON_SERVER, TypeDef


def render(schema: Schema) -> dict[str, str]:
    """The files of the library for an interface, by path."""
    return {
        f"{schema.name}/__init__.py": LibraryText(schema).render(),
        f"{schema.name}/__init__.pyi": TypesText(schema).render(),
        f"{schema.name}/py.typed": "",
    }


_MODULES = {kind.name: kind.module for kind in KINDS}
_TYPING = {"any": "Any", "literal": "Literal"}
_ABSTRACT = {"sequence": "Sequence", "mapping": "Mapping"}
_ENUMS = {
    "": "_enum.Enum",
    "int": "_enum.IntEnum",
    "str": "str, _enum.Enum",
    "flag": "_enum.Flag",
    "int_flag": "_enum.IntFlag",
}

BUDGET = "What is left of the budget, for each of its limits."
LAST_CALL = "The id of the last call that this thread or task made; empty before the first."


class LibraryText:
    """The text of one library."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.functions = list(schema.functions.values())
        self.types = list(schema.types.values())
        parameters = {p.name for function in self.functions for p in function.parameters}
        # In a function's body, a parameter hides a global of the same name.
        self.gate, self.given, self.omitted, self.map = (
            _free(name, parameters) for name in ("_gate", "_given", "_server", "_map")
        )
        self.restored = [f for f in self.functions if self._mentions(f.returns, "named")]

    def render(self) -> str:
        """The whole text."""
        parts = [docstring(self.schema.doc or f"The functions of {self.schema.name}."), ""]
        parts += self._imports()
        parts += ["", f"__all__ = {_listed(self._exported())}", ""]
        parts += [f"{self.gate} = _connect({self.schema.name!r})", ""]
        for definition in self.types:
            parts += ["", *self._type(definition), ""]
        parts += self._restorers()
        for function in self.functions:
            parts += ["", *self._function(function), ""]
        parts += ["", *_own(self.gate)]
        return "\n".join(parts) + "\n"

    def _exported(self) -> list[str]:
        return sorted([*self.schema.functions, *self.schema.types, "budget", "last_call"])

    def _kinds(self) -> set[str]:
        """The kinds of all hints, including inner ones."""
        hints = [f.returns for f in self.functions]
        hints += [p.hint for f in self.functions for p in f.parameters]
        hints += [field.hint for definition in self.types for field in definition.fields]
        return {inner.kind for hint in hints for inner in hint.walk()}

    def _standard_imports(self, kinds: set[str]) -> list[str]:
        abstract = {_ABSTRACT[kind] for kind in kinds & _ABSTRACT.keys()}
        if any(function.is_generator for function in self.functions):
            abstract |= {"AsyncIterator", "Iterator"}
        lines = [f"from collections.abc import {', '.join(sorted(abstract))}"] if abstract else []
        names = sorted({"Any", *(_TYPING[kind] for kind in kinds & _TYPING.keys())})
        lines.append(f"from typing import {', '.join(names)}")
        return [*lines, *self._class_imports()]

    def _module_imports(self, kinds: set[str]) -> list[str]:
        return [f"import {module}" for module in sorted({_MODULES[k] for k in kinds & {*_MODULES}})]

    def _imports(self) -> list[str]:
        kinds = self._kinds()
        lines = self._standard_imports(kinds)
        lines += ["", "from _seer_gate import connect as _connect"]
        if "handle" in kinds:
            lines.append("from _seer_gate import Handle")
        if self.restored:
            lines.append("from _seer_gate.rpc.values._restore import Restorer as _Restorer")
        if self._has_server_defaults():
            lines.append(f"from _seer_gate.rpc.values._restore import OMITTED as {self.omitted}")
            lines.append(f"from _seer_gate.rpc.values._restore import given as {self.given}")
        if modules := self._module_imports(kinds):
            lines += ["", "TYPE_CHECKING = False", "if TYPE_CHECKING:"]
            lines += [f"    {line}" for line in modules]
        return lines

    def _class_imports(self) -> list[str]:
        kinds = {definition.kind for definition in self.types}
        lines: list[str] = []
        if "record" in kinds:
            lines.append("import dataclasses as _dataclasses")
        if "enum" in kinds:
            lines.append("import enum as _enum")
        if kinds & {"tuple", "dict"}:
            lines.append("import typing as _typing")
        return lines

    def _has_server_defaults(self) -> bool:
        defaults = [p.default for f in self.functions for p in f.parameters]
        records = [d for d in self.types if d.kind in ("record", "tuple")]
        defaults += [f.default for d in records for f in d.fields]
        defaults += [DEFAULT_ON_SERVER for d in records for f in d.fields if not f.init]
        return DEFAULT_ON_SERVER in defaults

    # --- classes ---------------------------------------------------------------------------

    def _type(self, definition: TypeDef) -> list[str]:
        doc = [docstring(definition.doc, "    "), ""] if definition.doc else []
        if definition.kind == "enum":
            members = [f"    {f.name} = {f.default}" for f in definition.fields]
            head = f"class {definition.name}({_ENUMS[definition.base]}):"
            return [head, *doc, *(members or ["    pass"])]
        if definition.kind == "dict":
            return self._typed_dict(definition)
        fields = [self._field(definition, i) for i in range(len(definition.fields))]
        if definition.kind == "tuple":
            head = [f"class {definition.name}(_typing.NamedTuple):"]
        else:
            optional = [f.default is not None or not f.init for f in definition.fields]
            ordered = optional == sorted(optional)
            options = "" if ordered else "(kw_only=True)"
            head = [f"@_dataclasses.dataclass{options}", f"class {definition.name}:"]
        return [*head, *doc, *(fields or ["    pass"])]

    def _field(self, definition: TypeDef, index: int) -> str:
        field = definition.fields[index]
        text = f"    {field.name}: {str(field.hint)!r}"
        default = field.default if field.init else DEFAULT_ON_SERVER
        if default is None:
            return text
        if default == DEFAULT_ON_SERVER:
            return f"{text} = {self.omitted}"
        if definition.kind == "record" and default[0] in "[{":
            return f"{text} = _dataclasses.field(default_factory=lambda: {default})"
        return f"{text} = {default}"

    def _typed_dict(self, definition: TypeDef) -> list[str]:
        keys: list[str] = []
        for field in definition.fields:
            hint = str(field.hint)
            wrapped = f"_typing.NotRequired[{hint!r}]" if field.default is not None else repr(hint)
            keys.append(f"    {field.name!r}: {wrapped},")
        name = definition.name
        lines = [f"{name} = _typing.TypedDict({name!r}, {{", *keys, "})"]
        return [*lines, f"{name}.__doc__ = {definition.doc!r}"] if definition.doc else lines

    def _restorers(self) -> list[str]:
        if not self.restored:
            return []
        classes = ", ".join(f"{name!r}: {name}" for name in self.schema.types)
        definitions = {d.name: {**d.to_json(), "doc": ""} for d in self.types}
        lines = ["", f"_restorer = _Restorer({{{classes}}}, {definitions!r})"]
        if any(function.is_generator for function in self.restored):
            lines.append(f"{self.map} = map")
        for function in self.restored:
            lines.append(f"_restore_{function.name} = _restorer({function.returns.to_json()!r})")
        return [*lines, ""]

    # --- functions -------------------------------------------------------------------------

    def _function(self, function: Function) -> list[str]:
        head = function.signature(hint_text=self._hint, default_text=self._default)
        arguments = self._arguments(function)
        tensors = ", tensors=True" if self._mentions(function.returns, "tensor") else ""
        call = f"({function.name!r}, {arguments}{tensors})"
        doc = [docstring(function.doc, "    ")] if function.doc else []
        restore = f"_restore_{function.name}" if function in self.restored else ""
        async_name = f"_{function.name}_aio"
        async_head = head.replace(function.name, async_name, 1)
        if function.is_generator:
            async_head = async_head.replace(" -> Iterator[", " -> AsyncIterator[")
            stream = f"{self.gate}.stream{call}"
            lines = [f"def {head}:", *doc]
            lines.append(
                f"    return {self.map}({restore}, {stream})" if restore else f"    return {stream}"
            )
            lines += ["", "", f"async def {async_head}:", *doc]
            item = f"{restore}(item)" if restore else "item"
            lines += [f"    async for item in {self.gate}.astream{call}:", f"        yield {item}"]
        else:
            lines = [f"def {head}:", *doc]
            lines.append(f"    return {_wrapped(restore, f'{self.gate}.call{call}')}")
            lines += ["", "", f"async def {async_head}:", *doc]
            lines.append(f"    return {_wrapped(restore, f'await {self.gate}.acall{call}')}")
        return [*lines, "", "", *_as_twin(function.name, async_name)]

    def _arguments(self, function: Function) -> str:
        """The arguments of a call as source: the positional ones, then the others by name."""
        parameters = function.parameters
        lazy = any(p.default == DEFAULT_ON_SERVER for p in parameters)
        rest = any(p.kind == "var_positional" for p in parameters)
        positional: list[str] = []
        named: list[str] = []
        for p in parameters:
            if p.kind == "var_positional":
                positional.append(f"*{p.name}")
            elif p.kind == "var_keyword":
                named.append(f"**{p.name}")
            elif self._by_position(p, by_name=lazy and not rest):
                positional.append(p.name)
            else:
                named.append(f"{p.name!r}: {p.name}")
        comma = "," if len(positional) == 1 else ""
        text = f"({', '.join(positional)}{comma}), {{{', '.join(named)}}}"
        return f"*{self.given}({text})" if lazy else text

    def _by_position(self, parameter: Parameter, *, by_name: bool) -> bool:
        if parameter.kind == "positional_or_keyword":
            return not by_name
        return parameter.kind == "positional_only"

    def _hint(self, hint: Hint) -> str:
        """A hint as source; quoted if it names a library, which is not imported at run time."""
        text = str(hint)
        return repr(text) if any(inner.kind in _MODULES for inner in hint.walk()) else text

    def _default(self, default: str) -> str:
        return self.omitted if default == DEFAULT_ON_SERVER else default

    def _mentions(self, hint: Hint, kind: str) -> bool:
        """Whether the hint, or a class that it names, has a part of this kind."""
        seen: set[str] = set()
        pending = [hint]
        while pending:
            for inner in pending.pop().walk():
                if inner.kind == kind:
                    return True
                if inner.kind == "named" and inner.detail not in seen:
                    seen.add(inner.detail)
                    pending.extend(f.hint for f in self.schema.types[inner.detail].fields)
        return False


def docstring(text: str, indent: str = "") -> str:
    """The source of a docstring with the value `text`, which may have any characters.

    Lone surrogates become question marks: Python 3.13 cannot compile docstrings that have one.
    """
    text = text.encode("utf-8", "replace").decode()
    lines = [line.rstrip() for line in inspect.cleandoc(text).split("\n")]
    if len(lines) > 1:
        lines = [lines[0], *(f"{indent}{line}" if line else "" for line in lines[1:]), indent]
    body = "".join(map(_escaped, "\n".join(lines)))
    # Two quotes in a row, or one at the end, could close the string.
    body = re.sub(r'"(?="|\Z)', r"\"", body)
    return f'{indent}"""{body}"""'


def _escaped(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if char == "\n" or char.isprintable():
        return char
    return char.encode("unicode_escape").decode()


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _listed(names: list[str]) -> str:
    inner = "".join(f"    {name!r},\n" for name in names)
    return f"[\n{inner}]"


def _wrapped(function: str, call: str) -> str:
    return f"{function}({call})" if function else call


def _as_twin(name: str, async_name: str) -> list[str]:
    return [
        f"{async_name}.__name__ = {async_name}.__qualname__ = {name + '.aio'!r}",
        f"{name}.aio = {async_name}",
    ]


def _own(gate: str) -> list[str]:
    return [
        "def budget() -> dict[str, Any]:",
        f'    """{BUDGET}"""',
        f"    return {gate}.budget()",
        "",
        "",
        "def last_call() -> str:",
        f'    """{LAST_CALL}"""',
        f"    return {gate}.last_call()",
    ]


class TypesText(LibraryText):
    """The text of the stub of one library."""

    def render(self) -> str:
        """The whole text."""
        self.omitted = "..."
        parts = [docstring(self.schema.doc or f"The functions of {self.schema.name}."), ""]
        kinds = self._kinds()
        parts += self._standard_imports(kinds)
        parts += ["from typing import Protocol as _Protocol", *self._module_imports(kinds)]
        if "handle" in kinds:
            parts += ["", "from _seer_gate.rpc.client import Handle as Handle"]
        parts += ["", f"__all__ = {self._exported()!r}", ""]
        for definition in self.types:
            parts += ["", *self._type(definition), ""]
        for function in self.functions:
            parts += ["", *self._function(function), ""]
        parts += ["", "def budget() -> dict[str, Any]:", *_body(BUDGET, "    ")]
        parts += ["", "def last_call() -> str:", *_body(LAST_CALL, "    ")]
        return "\n".join(parts) + "\n"

    def _function(self, function: Function) -> list[str]:
        head = function.signature(default_text=self._default)
        parameters = head.removeprefix(f"{function.name}(")
        comma = ", " if function.parameters else ""
        called = f"__call__(self{comma}{parameters}"
        awaited = f"aio(self{comma}{parameters}"
        if function.is_generator:
            awaited = awaited.replace(" -> Iterator[", " -> AsyncIterator[")
        kind = "def" if function.is_generator else "async def"
        name = f"_{function.name}_function"
        return [
            f"class {name}(_Protocol):",
            f"    def {called}:",
            *_body(function.doc, "        "),
            f"    {kind} {awaited}:",
            *_body(function.doc, "        "),
            "",
            f"{function.name}: {name}",
        ]


def _body(doc: str, indent: str) -> list[str]:
    return [docstring(doc, indent)] if doc else [f"{indent}..."]
