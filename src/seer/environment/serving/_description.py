"""A served interface as data for people and tools: functions, schemas and warnings."""

from dataclasses import dataclass
from typing import Any

from seer.rpc.interface._schema import Schema
from seer.rpc.library._json_schema import result_schema, tool_schema


@dataclass(frozen=True, kw_only=True)
class FunctionDescription:
    """One exposed function."""

    name: str
    signature: str
    """As source: `f(text: str, *, layer: int = 3) -> dict`."""
    doc: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments."""
    result: dict[str, Any]
    """JSON Schema of the result."""
    options: dict[str, Any]
    """The arguments of `@expose(...)`."""


@dataclass(frozen=True, kw_only=True)
class CopyDescription:
    """One copy of an interface that is served with several copies."""

    copy: int
    """The copy's number, which the interface never reuses."""
    state: str
    """`starting`, `ready`, `draining` (finishing its running calls) or `ending`."""
    pid: int
    """Its process in the sandbox."""
    gpu: str | None
    """The GPU that it sees, as CUDA names it; None if the sandbox has no GPU."""
    running: int
    """How many calls it is running."""


@dataclass(frozen=True, kw_only=True)
class InterfaceDescription:
    """One served interface."""

    name: str
    doc: str
    source_hash: str
    functions: tuple[FunctionDescription, ...]
    warnings: tuple[str, ...]
    """Warnings from when the file was loaded, such as missing return hints."""
    copies: tuple[CopyDescription, ...] = ()
    """Its copies, if it is served with several."""


@dataclass(frozen=True, kw_only=True)
class InterfaceUsage:
    """The usage of a served interface, in the units of a `Budget`."""

    interface: dict[str, float]
    functions: dict[str, dict[str, float]]
    """By name."""
    callers: dict[str, dict[str, float]]
    """By name. The gate makes a name from the caller's label, such as a session's name."""


def describe(
    schema: Schema, warnings: tuple[str, ...], copies: tuple[CopyDescription, ...] = ()
) -> InterfaceDescription:
    """Describe an interface from its schema."""
    return InterfaceDescription(
        name=schema.name,
        doc=schema.doc,
        source_hash=schema.source_hash,
        functions=tuple(
            FunctionDescription(
                name=function.name,
                signature=function.signature(),
                doc=function.doc,
                parameters=dict(tool_schema(function)),
                result=dict(result_schema(function)),
                options=function.options.to_json(),
            )
            for function in schema.functions.values()
        ),
        warnings=warnings,
        copies=copies,
    )
