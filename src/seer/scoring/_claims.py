"""Typed claims: statements about calls in a form that can be computed again.

A claim has words for people and checks for the verifier. A check reads numbers or texts from the
results of calls, reduces them to one number or text (`measure`), and compares it with a value. This
module defines the form; `_readings` reads values from a record, and `_evidence` decides.
"""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from seer.errors import AnswerError

Operator = Literal[
    "==", "!=", "<", "<=", ">", ">=", "within", "covers", "excludes", "contains", "not contains"
]
"""`within`: at most that far from 0. `covers`, `excludes`: whether the value is in the 95 %
interval of a difference."""
Measure = Literal["value", "mean", "rate", "difference", "ratio"]
ClaimKind = Literal["effect", "null", "fact"]
Scalar = str | float | bool

_SCALAR: dict[str, Any] = {"type": ["number", "string", "boolean"]}
_PATH: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "maxLength": 4000},
        {
            "type": "array",
            "maxItems": 32,
            "items": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "integer"},
                    {
                        "type": "object",
                        "minProperties": 1,
                        "maxProperties": 1,
                        "additionalProperties": {"type": [*_SCALAR["type"], "null"]},
                    },
                ]
            },
        },
    ]
}
_READING: dict[str, Any] = {
    "type": "object",
    "required": ["call"],
    "additionalProperties": False,
    "properties": {"call": {"type": "string"}, "path": _PATH},
}
_READINGS: dict[str, Any] = {
    "anyOf": [_READING, {"type": "array", "items": _READING, "minItems": 1, "maxItems": 512}]
}
_OPERATOR: dict[str, Any] = {"enum": [*get_args(Operator)]}
_WORDS: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 2000}
_WHERE: dict[str, Any] = {
    "type": "object",
    "required": ["operator", "value"],
    "additionalProperties": False,
    "properties": {"operator": _OPERATOR, "value": _SCALAR},
}
CLAIM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["text"],
    "additionalProperties": False,
    "properties": {
        "text": {"type": "string", "maxLength": 2000},
        "kind": {"enum": [*get_args(ClaimKind)]},
        "checks": {
            "type": "array",
            "maxItems": 32,
            "items": {
                "type": "object",
                "required": ["operator", "value"],
                "additionalProperties": False,
                "properties": {
                    "measure": {"enum": [*get_args(Measure)]},
                    "call": {"type": "string"},
                    "path": _PATH,
                    "of": _READINGS,
                    "control": _READINGS,
                    "where": _WHERE,
                    "given": {
                        "anyOf": [_WORDS, {"type": "array", "items": _WORDS, "maxItems": 512}]
                    },
                    "operator": _OPERATOR,
                    "value": _SCALAR,
                },
            },
        },
        "tried": {"type": "integer", "minimum": 0},
        # Reports of older runs cite calls without saying what to read in them.
        "calls": {"type": "array", "items": {"type": "string"}, "maxItems": 512},
        "controls": {"type": "array", "items": {"type": "string"}, "maxItems": 512},
    },
}


@dataclass(frozen=True)
class Select:
    """Selects the first item of a list whose field `key` has this value."""

    key: str
    value: Scalar


PathStep = str | int | Select
"""A key, an index or a selection; the key `*` means every item."""


@dataclass(frozen=True)
class Reading:
    """A position in the result of a call."""

    call: str
    """The id that the caller saw, or `function#n`."""
    path: tuple[PathStep, ...] = ()

    def __str__(self) -> str:
        return f"{self.call}{path_text(self.path)}"


@dataclass(frozen=True)
class Condition:
    """The operator and value of a comparison."""

    operator: Operator
    value: Scalar

    def __str__(self) -> str:
        return f"{self.operator} {self.value!r}"


@dataclass(frozen=True)
class Check:
    """One statement about results, which the verifier computes again."""

    of: tuple[Reading, ...]
    condition: Condition
    measure: Measure = "value"
    control: tuple[Reading, ...] = ()
    """The readings where the effect should be absent."""
    where: Condition | None = None
    """Which readings count, for a rate."""
    given: tuple[str, ...] = ()
    """Words of the input; each call of `of` must contain some of them."""


@dataclass(frozen=True)
class Claim:
    """One statement of an agent, and its evidence."""

    text: str
    """In words, for people; nothing is computed from it."""
    checks: tuple[Check, ...] = ()
    kind: ClaimKind = "effect"
    """`effect`: a control does not show it. `null`: there is no effect. `fact`: a plain fact."""
    tried: int | None = None
    """The number of attempts, if there were more than the checks cite."""
    calls: tuple[str, ...] = ()
    """The cited calls, in older reports only."""
    controls: tuple[str, ...] = ()
    """The cited controls, in older reports only."""


def claim_from(data: Mapping[str, Any]) -> Claim:
    """Make a claim from JSON that fits `CLAIM_SCHEMA`.

    Raises:
        AnswerError: A path cannot be parsed, or a check does not say what it reads.
    """
    return Claim(
        text=data["text"],
        checks=tuple(map(_check, data.get("checks") or ())),
        kind=data.get("kind", "effect"),
        tried=data.get("tried"),
        calls=tuple(data.get("calls") or ()),
        controls=tuple(data.get("controls") or ()),
    )


def _check(data: Mapping[str, Any]) -> Check:
    where, given = data.get("where"), data.get("given", ())
    own = [{"call": data["call"], "path": data.get("path", "")}] if "call" in data else []
    of = own + _list(data.get("of"))
    if not of:
        raise AnswerError("a check needs `call` and `path`, or `of`")
    return Check(
        of=tuple(map(_reading, of)),
        condition=_condition(data),
        measure=data.get("measure", "value"),
        control=tuple(map(_reading, _list(data.get("control")))),
        where=_condition(where) if where else None,
        given=(given,) if isinstance(given, str) else tuple(given),
    )


def _condition(data: Mapping[str, Any]) -> Condition:
    return Condition(data["operator"], comparable(data["value"]))


def comparable(value: Any) -> Any:
    """Make a value comparable with floats: an integer beyond their range becomes infinite."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return math.inf if value > 0 else -math.inf
    return value


def _list(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    return cast("list[dict[str, Any]]", value if isinstance(value, list) else [value])


def _reading(data: Mapping[str, Any]) -> Reading:
    path = data.get("path", "")
    steps = parse_path(path) if isinstance(path, str) else tuple(map(_step, path))
    return Reading(data["call"], steps)


def _step(value: Any) -> PathStep:
    if isinstance(value, dict):
        ((key, wanted),) = cast("dict[str, Any]", value).items()
        return Select(key, wanted)
    return value


_STEP = re.compile(
    r"""
    \[ (?P<index> -?\d+ ) \] | (?P<every> \[\*\] )
    | \[ (?P<field> [^\[\]="]+ ) = (?P<wanted> "(?:[^"\\]|\\.)*" | [^\[\]"]* ) \]
    | \[ (?P<quoted> "(?:[^"\\]|\\.)*" ) \]
    | \.? (?P<key> [^.\[\]]+ )
    """,
    re.VERBOSE,
)


def parse_path(text: str) -> tuple[PathStep, ...]:
    """Parse a path: keys with dots, `[0]`, `[*]`, `[token=" she"]`, `["odd.key"]`.

    Raises:
        AnswerError: The path has another form.
    """
    steps: list[PathStep] = []
    place = 0
    while place < len(text):
        found = _STEP.match(text, place)
        if found is None:
            raise AnswerError(f"the path {text!r} is not valid from {text[place:]!r} on")
        place = found.end()
        if found["index"] is not None:
            steps.append(int(found["index"]))
        elif found["every"] is not None:
            steps.append("*")
        elif found["field"] is not None:
            steps.append(Select(found["field"], _wanted(found["wanted"])))
        elif found["quoted"] is not None:
            try:
                steps.append(str(json.loads(found["quoted"])))
            except ValueError:
                raise AnswerError(f"the path {text!r} has an invalid escape") from None
        else:
            steps.append(found["key"])
    return tuple(steps)


def path_text(path: Sequence[PathStep]) -> str:
    """A path as text that `parse_path` can read."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, Select):
            parts.append(f"[{step.key}={json.dumps(step.value, ensure_ascii=False)}]")
        elif isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append("[*]" if step == "*" else f".{step}")
    return "".join(parts)


def _wanted(text: str) -> Scalar:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float) else text
