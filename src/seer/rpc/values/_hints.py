"""Type hints as data, the same on both sides of the gate.

A `Hint` is a small tree that can be written as JSON. The server's checks, the stubs, the MCP
schemas and the docs are all made from it. `_annotations` makes hints from annotations, `_convert`
converts values by hints, and `_types` describes the classes that hints name.
"""

from __future__ import annotations

import ast
from typing import Any

from ._kinds import KINDS

SIMPLE: dict[Any, str] = {
    None: "none",
    type(None): "none",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    complex: "complex",
    object: "any",
}
CONTAINERS: dict[Any, str] = {
    list: "list",
    set: "set",
    frozenset: "frozenset",
    dict: "dict",
    tuple: "tuple",
}
_TEXT = {
    "none": "None",
    "any": "Any",
    "sequence": "Sequence",
    "mapping": "Mapping",
    "handle": "Handle",
    **{kind.name: kind.text for kind in KINDS},
}
NAMES = frozenset(
    {*SIMPLE.values(), *CONTAINERS.values(), *_TEXT, "tuple_of", "union", "literal", "named"}
)
LITERALS = frozenset({str, int, bool, bytes, type(None)})
"""The types of the values that a `Literal` may have."""
_ARITY = {
    **dict.fromkeys(("list", "sequence", "set", "frozenset"), (0, 1)),
    **dict.fromkeys(("dict", "mapping"), (0, 2)),
    "tuple_of": (1,),
}


class UnsupportedHintError(Exception):
    """The gate does not support a hint; the message says why."""


class Hint:
    """One node of a hint.

    Attributes:
        kind: One of `NAMES`: `int`, `list`, `union`, `ndarray`, `named` ...
        args: The hints inside it.
        detail: The values of a `literal` (as a tuple), the class name of a `named`, the dtype of an
            `ndarray` (or None).
    """

    __slots__ = ("args", "detail", "kind")

    def __init__(self, kind: str, args: tuple[Hint, ...] = (), detail: Any = None) -> None:
        self.kind = kind
        self.args = args
        self.detail = detail

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hint) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.kind, self.args))

    def __repr__(self) -> str:
        return f"Hint({self})"

    def __str__(self) -> str:
        """The hint as Python source."""
        inner = ", ".join(map(str, self.args))
        if self.kind == "union":
            return " | ".join(map(str, self.args))
        if self.kind == "literal":
            return f"Literal[{', '.join(map(repr, self.detail))}]"
        if self.kind == "named":
            return self.detail
        if self.kind == "tuple_of":
            return f"tuple[{inner}, ...]"
        if self.kind == "tuple":
            return f"tuple[{inner or '()'}]"
        name = _TEXT.get(self.kind, self.kind)
        return f"{name}[{inner}]" if inner else name

    def walk(self) -> list[Hint]:
        """This hint and all hints inside it, but not the hints of classes that it names."""
        found: list[Hint] = [self]
        for hint in found:
            found.extend(hint.args)
        return found

    def to_json(self) -> Any:
        """A JSON form: only the kind, if there is nothing else."""
        if not self.args and self.detail is None:
            return self.kind
        out: dict[str, Any] = {"kind": self.kind}
        if self.args:
            out["args"] = [hint.to_json() for hint in self.args]
        if self.detail is not None:
            # As source, because JSON has neither tuples nor bytes.
            literal = self.kind == "literal"
            out["detail"] = repr(self.detail) if literal else self.detail
        return out

    @classmethod
    def from_json(cls, found: Any) -> Hint:
        """Read what `to_json` wrote.

        Raises:
            ValueError: It is malformed.
        """
        if isinstance(found, str):
            found = {"kind": found}
        kind, detail = found["kind"], found.get("detail")
        args = tuple(map(cls.from_json, found.get("args", ())))
        if kind not in NAMES:
            raise ValueError(f"unknown kind of hint {kind!r}")
        if len(args) not in _ARITY.get(kind, (0,)) and kind not in ("union", "tuple"):
            raise ValueError(f"a hint of kind {kind!r} with {len(args)} hints inside")
        if kind == "literal":
            detail = literal_hint(ast.literal_eval(detail)).detail
        elif (
            detail is not None
            and not str(detail).replace("|", "_").replace("<", "_").isidentifier()
        ):
            raise ValueError(f"{detail!r} is not a name")
        return cls(kind, args, detail)


ANY = Hint("any")


def literal_hint(args: tuple[Any, ...]) -> Hint:
    """The hint `Literal[args]`, with the values of enum members.

    Raises:
        UnsupportedHintError: A value is not a literal.
    """
    values: list[Any] = []
    for value in args:
        if type(value) not in LITERALS:
            value = getattr(value, "value", value)
        if type(value) not in LITERALS:
            raise UnsupportedHintError(f"Literal[{value!r}] is not a literal value")
        values.append(value)
    return Hint("literal", detail=tuple(values))
