"""Reading docstrings: the description, and what they say about parameters.

Google style (`Args:`), numpy style (`Parameters` underlined) and Sphinx fields (`:param x:`) are
understood; anything else is description.
"""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

_GOOGLE = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*")
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ITEM = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_SPHINX = re.compile(r":param\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_PARAMETER_SECTIONS = frozenset({"Args", "Arguments", "Parameters"})


class Docstring(NamedTuple):
    """A docstring in parts.

    Attributes:
        description: The text without the parameters' section.
        parameters: What is said about each parameter.
    """

    description: str
    parameters: dict[str, str]


def parse(text: str) -> Docstring:
    """Take a docstring apart."""
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
    """The lines from `index` on that are indented or empty, and where they end."""
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
