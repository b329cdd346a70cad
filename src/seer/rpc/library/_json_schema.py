"""JSON Schemas of parameters and results, and calls from JSON objects.

MCP tools take one object with named arguments. `tool_schema` describes it for a function, and
`to_call` turns such an object into positional and keyword arguments. Values are plain JSON, so
bytes and images are base64 text and arrays are nested lists. Bind them with `plain=True`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from typing import Any, NamedTuple, cast

from seer.errors import ArgumentError
from seer.rpc.interface._schema import Function, Parameter
from seer.rpc.values._hints import Hint
from seer.rpc.values._kinds import KINDS
from seer.rpc.values._types import DEFAULT_ON_SERVER, TypeDef

JsonSchema = dict[str, Any]

_SIMPLE: dict[str, JsonSchema] = {
    "any": {},
    "none": {"type": "null"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "bytes": {"type": "string", "contentEncoding": "base64"},
    "complex": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    **{kind.name: kind.schema for kind in KINDS},
    "handle": {
        "type": "object",
        "description": "a value that stays on the server, as a function returned it",
        "properties": {"$seer": {"const": "handle"}, "id": {"type": "string"}},
        "required": ["$seer", "id"],
    },
}

_SHOWN = frozenset({"any", "bytes", *(kind.name for kind in KINDS if kind.shown)})
"""Kinds that an agent sees as pictures, files or descriptions instead of JSON data."""


def tool_schema(function: Function) -> JsonSchema:
    """The schema of a function's arguments as one object."""
    notes = parse_docstring(function.doc).parameters
    properties: JsonSchema = {}
    required: list[str] = []
    extra: bool | JsonSchema = False
    for parameter in function.parameters:
        if parameter.kind == "var_keyword":
            extra = hint_schema(parameter.hint)
            continue
        properties[parameter.name] = _parameter(parameter, notes.get(parameter.name, ""))
        if parameter.default is None and parameter.kind != "var_positional":
            required.append(parameter.name)
    schema: JsonSchema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = extra
    return _with_definitions(schema, [p.hint for p in function.parameters], function)


def result_schema(function: Function) -> JsonSchema:
    """The schema of a result; for a generator, of the list of its items."""
    schema = hint_schema(function.returns)
    if function.is_generator:
        schema = {"type": "array", "items": schema}
    return _with_definitions(dict(schema), [function.returns], function)


def output_schema(function: Function) -> JsonSchema | None:
    """The schema of a tool's structured result; None if a part of it is shown in another way.

    A result that is too large is in a file, and a result that takes long is fetched later, so no
    property is required. A number may be "NaN", "Infinity" or "-Infinity".
    """
    hints = [function.returns, *(f.hint for t in function.types.values() for f in t.fields)]
    named = {inner.detail for inner in function.returns.walk() if inner.kind == "named"}
    if function.returns.kind == "any" or (
        {inner.kind for hint in (hints if named else hints[:1]) for inner in hint.walk()} & _SHOWN
    ):
        return None
    schema = result_schema(function)
    definitions = schema.pop("$defs", None)
    text: JsonSchema = {"type": "string"}
    properties = {"result": schema, "file": text, "result_id": text, "status": text}
    found: JsonSchema = {"type": "object", "properties": properties}
    return _with_names(found | ({"$defs": definitions} if definitions else {}))


def _with_names(schema: Any) -> Any:
    """The schema with text allowed for numbers, because JSON has no NaN and no infinity."""
    if isinstance(schema, list):
        return [_with_names(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = {key: _with_names(item) for key, item in cast("JsonSchema", schema).items()}
    return {**found, "type": ["number", "string"]} if found.get("type") == "number" else found


def description(function: Function) -> str:
    """The description of a tool for an agent: the docstring without the section on parameters."""
    return parse_docstring(function.doc).description or f"{function.signature()}"


def to_call(function: Function, arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Turn an object of named arguments into positional and keyword arguments.

    Raises:
        ArgumentError: A positional-only parameter is left out before one that is given, or the
            value for `*args` is not a list.
    """
    args: list[Any] = []
    kwargs = dict(arguments)
    starred = next((p.name for p in function.parameters if p.kind == "var_positional"), None)
    by_position = starred is not None and bool(kwargs.get(starred))
    skipped = ""
    for parameter in function.parameters:
        name, kind = parameter.name, parameter.kind
        if kind == "var_positional" and name in kwargs:
            rest = kwargs.pop(name)
            if type(rest) is not list:
                raise ArgumentError(f"{function.name}() parameter {name!r}: expected a list")
            args.extend(rest)  # pyright: ignore[reportUnknownArgumentType]
        elif kind == "positional_only" or (kind == "positional_or_keyword" and by_position):
            if name not in kwargs:
                skipped = skipped or name
                continue
            if skipped:
                raise ArgumentError(
                    f"{function.name}() needs an argument for {skipped!r} when {name!r} is given"
                )
            args.append(kwargs.pop(name))
    return args, kwargs


def hint_schema(hint: Hint) -> JsonSchema:
    """The JSON Schema of a hint; classes are references into `$defs`."""
    if hint.kind in _SIMPLE:
        simple = dict(_SIMPLE[hint.kind])
        if hint.kind == "ndarray" and hint.detail is not None:
            simple["description"] += f" (dtype {hint.detail})"
        return simple
    inner = [hint_schema(arg) for arg in hint.args]
    if hint.kind == "union":
        return {"anyOf": inner}
    if hint.kind == "literal":
        return {"enum": [v.decode("latin-1") if type(v) is bytes else v for v in hint.detail]}
    if hint.kind == "named":
        return {"$ref": f"#/$defs/{hint.detail}"}
    if hint.kind == "tuple":
        size = len(inner)
        return {"type": "array", "prefixItems": inner, "minItems": size, "maxItems": size}
    if hint.kind in ("dict", "mapping"):
        return {"type": "object", "additionalProperties": inner[1]} if inner else {"type": "object"}
    schema: JsonSchema = {"type": "array"}
    if inner:
        schema["items"] = inner[0]
    if hint.kind in ("set", "frozenset"):
        schema["uniqueItems"] = True
    return schema


def _parameter(parameter: Parameter, note: str) -> JsonSchema:
    schema = hint_schema(parameter.hint)
    if parameter.kind == "var_positional":
        schema = {"type": "array", "items": schema}
    text = parameter.note or note
    if text:
        # Older readers ignore everything beside a reference, so the reference is wrapped.
        schema = {"allOf": [schema], "description": text} if "$ref" in schema else schema
        schema["description"] = text
    if parameter.default is not None and parameter.default != DEFAULT_ON_SERVER:
        value = ast.literal_eval(parameter.default)
        if _is_json(value):
            schema["default"] = value
    return schema


def _is_json(value: Any) -> bool:
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False


def _with_definitions(schema: JsonSchema, hints: list[Hint], function: Function) -> JsonSchema:
    definitions: JsonSchema = {}
    pending = list(hints)
    while pending:
        for inner in pending.pop().walk():
            if inner.kind == "named" and inner.detail not in definitions:
                definition = function.types[inner.detail]
                definitions[inner.detail] = _definition(definition)
                pending.extend(field.hint for field in definition.fields)
    if definitions:
        schema["$defs"] = definitions
    return schema


def _definition(definition: TypeDef) -> JsonSchema:
    about: JsonSchema = {"description": definition.doc} if definition.doc else {}
    if definition.kind == "enum":
        if definition.base in ("flag", "int_flag"):
            members = ", ".join(f"{field.name} = {field.default}" for field in definition.fields)
            text = f"{definition.doc}\nThe sum of any of: {members}".strip()
            return {"type": "integer", "description": text}
        values = [ast.literal_eval(field.default or "None") for field in definition.fields]
        return {**about, "enum": values}
    if definition.kind == "tuple":
        least = sum(field.default is None for field in definition.fields)
        return {
            **about,
            "type": "array",
            "prefixItems": [hint_schema(field.hint) for field in definition.fields],
            "minItems": least,
            "maxItems": len(definition.fields),
        }
    return {
        **about,
        "type": "object",
        "properties": {field.name: hint_schema(field.hint) for field in definition.fields},
        "required": [f.name for f in definition.fields if f.default is None and f.init],
        "additionalProperties": False,
    }


_GOOGLE = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*")
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ITEM = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_SPHINX = re.compile(r":param\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_PARAMETER_SECTIONS = frozenset({"Args", "Arguments", "Parameters"})


class Docstring(NamedTuple):
    """A docstring in parts.

    Attributes:
        description: The text without the section on parameters.
        parameters: The description of each parameter.
    """

    description: str
    parameters: dict[str, str]


def parse_docstring(text: str) -> Docstring:
    """Split a docstring into its parts."""
    lines = inspect.cleandoc(text).split("\n")
    kept: list[str] = []
    parameters: dict[str, str] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        heading = _GOOGLE.fullmatch(line)
        if heading and heading[1] in _PARAMETER_SECTIONS:
            index = _google(lines, index + 1, parameters)
        elif line == "Parameters" and _is_rule(lines, index + 1):
            index = _numpy(lines, index + 2, parameters)
        elif field := _SPHINX.fullmatch(line):
            block, index = _indented(lines, index + 1)
            parameters[field[1]] = _joined([field[2], *block])
        else:
            kept.append(line)
            index += 1
    return Docstring("\n".join(kept).strip(), parameters)


def _google(lines: list[str], index: int, parameters: dict[str, str]) -> int:
    block, index = _indented(lines, index)
    depth = min((_depth(line) for line in block if line.strip()), default=0)
    name = ""
    for line in block:
        item = _GOOGLE_ITEM.fullmatch(line.strip()) if _depth(line) == depth else None
        if item:
            name = item[1]
            parameters[name] = item[2]
        elif name:
            parameters[name] = _joined([parameters[name], line])
    return index


def _numpy(lines: list[str], index: int, parameters: dict[str, str]) -> int:
    while index < len(lines):
        item = _NUMPY_ITEM.fullmatch(lines[index])
        if item is None or _is_rule(lines, index + 1):
            break
        block, index = _indented(lines, index + 1)
        for name in item[1].split(","):
            parameters[name.strip()] = _joined(block)
    return index


def _indented(lines: list[str], index: int) -> tuple[list[str], int]:
    """The lines from `index` on that are indented or empty, and the index after them."""
    start = index
    while index < len(lines) and (not lines[index].strip() or lines[index][0].isspace()):
        index += 1
    return lines[start:index], index


def _is_rule(lines: list[str], index: int) -> bool:
    return index < len(lines) and re.fullmatch(r"-{3,}", lines[index]) is not None


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())
