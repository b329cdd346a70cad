"""The documentation of an interface for agents: Markdown for a prompt, and a skill."""

from __future__ import annotations

import inspect
import json
import re

from seer.rpc.interface._schema import Function, Schema
from seer.rpc.values._types import DEFAULT_ON_SERVER, TypeDef

_DESCRIPTION = 1024
"""The longest description that readers of skills accept."""


def render_prompt(schema: Schema) -> str:
    """Markdown with signatures and docstrings of all functions."""
    parts = [f"# `{schema.name}`"]
    if schema.doc:
        parts.append(inspect.cleandoc(schema.doc))
    parts.append(
        f"Use it from Python with `import {schema.name}`. Each call runs on the server; "
        f"`f.aio(...)` is the form to await. `{schema.name}.budget()` returns what is left to use, "
        f"`{schema.name}.last_call()` the id of the latest call, for citing it."
    )
    parts += [_function(function) for function in schema.functions.values()]
    if schema.types:
        parts.append(f"## Types\n\n{_fenced(chr(10).join(map(_type, schema.types.values())))}")
    return "\n\n".join(parts) + "\n"


def render_skill(schema: Schema) -> str:
    """A `SKILL.md` with front matter."""
    name = re.sub(r"[^a-z0-9]+", "-", schema.name.lower()).strip("-")[:64] or "interface"
    names = ", ".join(schema.functions)
    about = inspect.cleandoc(schema.doc).split("\n")[0] if schema.doc else ""
    description = f"{about} Functions: {names}." if about else f"Call {schema.name}: {names}."
    # Every JSON string is a YAML string too.
    quoted = json.dumps(description[:_DESCRIPTION])
    return f"---\nname: {name}\ndescription: {quoted}\n---\n\n{render_prompt(schema)}"


def _function(function: Function) -> str:
    parts = [_fenced(f"def {function.signature()}"), _limits(function)]
    if function.doc:
        parts.insert(1, inspect.cleandoc(function.doc))
    if any(p.default == DEFAULT_ON_SERVER for p in function.parameters):
        parts.append("`...` stands for a default that the server fills in.")
    return f"## `{function.name}`\n\n" + "\n\n".join(part for part in parts if part)


def _limits(function: Function) -> str:
    options = function.options
    notes: list[str] = []
    if options.timeout is not None:
        notes.append(f"at most {options.timeout:g} s per call")
    if options.max_calls is not None:
        notes.append(f"at most {options.max_calls} calls")
    if options.cost != 1:
        notes.append(f"one call counts as {options.cost:g}")
    if function.is_generator:
        notes.append("results are streamed")
    return f"({'; '.join(notes)}.)" if notes else ""


def _type(definition: TypeDef) -> str:
    bases = {"record": "", "tuple": "(NamedTuple)", "dict": "(TypedDict)", "enum": "(Enum)"}
    lines = [f"class {definition.name}{bases[definition.kind]}:"]
    if definition.doc:
        first = inspect.cleandoc(definition.doc).split("\n")[0]
        lines.append(f"    # {first}")
    for field in definition.fields:
        if definition.kind == "enum":
            lines.append(f"    {field.name} = {field.default}")
        elif definition.kind == "dict" and field.default is not None:
            lines.append(f"    {field.name}: NotRequired[{field.hint}]")
        else:
            default = "" if field.default is None else f" = {field.default}"
            lines.append(f"    {field.name}: {field.hint}{default}")
    return "\n".join(lines) + "\n"


def _fenced(code: str) -> str:
    """A code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{code.rstrip()}\n{fence}"
