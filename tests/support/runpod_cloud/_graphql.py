"""As much of GraphQL as RunPod's callers use: one operation, arguments, variables, selections.

Reads a document into fields and picks from answers exactly what was asked for. It has no fragments,
directives and schemas, and refuses everything that it does not understand.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
_TOKEN = re.compile(
    r'[\s,]+|#[^\n]*|("(?:\\.|[^"\\])*")|(-?\d+(?:\.\d+)?)|(\$?\w+)|([{}()\[\]:!=])'
)


class QueryError(Exception):
    """A document cannot be read, or asks for something that does not exist."""


@dataclass
class Field:
    """A field of a document, with its arguments and selections."""

    name: str
    arguments: dict[str, Json] = field(default_factory=dict[str, Json])
    selection: "list[Field]" = field(default_factory=lambda: list[Field]())


class _Reader:
    def __init__(self, text: str, variables: Mapping[str, Json]) -> None:
        self._tokens = _tokens(text)
        self._position = 0
        self._variables = variables

    def peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if not token or (wanted is not None and token != wanted):
            raise QueryError(f'Syntax Error: Expected "{wanted}", found "{token or "<EOF>"}".')
        self._position += 1
        return token

    def operation(self) -> list[Field]:
        if self.peek() in ("query", "mutation"):
            self.take()
            while self.peek() not in ("{", "("):
                self.take()
            if self.peek() == "(":
                while self.take() != ")":
                    pass
        return self.selection()

    def selection(self) -> list[Field]:
        self.take("{")
        found: list[Field] = []
        while self.peek() != "}":
            found.append(self.field())
        self.take("}")
        return found

    def field(self) -> Field:
        made = Field(self.take())
        if self.peek() == "(":
            self.take("(")
            while self.peek() != ")":
                name = self.take()
                self.take(":")
                made.arguments[name] = self.value()
            self.take(")")
        if self.peek() == "{":
            made.selection = self.selection()
        return made

    def value(self) -> Json:
        token = self.take()
        if token == "{":
            made: dict[str, Json] = {}
            while self.peek() != "}":
                name = self.take()
                self.take(":")
                made[name] = self.value()
            self.take("}")
            return made
        if token == "[":
            items: list[Json] = []
            while self.peek() != "]":
                items.append(self.value())
            self.take("]")
            return items
        if token.startswith("$"):
            return self._variables.get(token[1:])
        if token[0] == '"' or token[0] in "-0123456789" or token in ("true", "false", "null"):
            return cast(Json, json.loads(token))
        return token  # a word of an enumeration


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise QueryError(f"Syntax Error: Unexpected character {text[position]!r}.")
        token = next((group for group in match.groups() if group is not None), None)
        if token is not None:
            found.append(token)
        position = match.end()
    return found


def parse(text: str, variables: Mapping[str, Json]) -> list[Field]:
    """The fields of a document's operation.

    Raises:
        QueryError: It cannot be read.
    """
    return _Reader(text, variables).operation()


def select(value: Json, wanted: Field, kind: str) -> Json:
    """Of `value`, what the field asks for.

    Raises:
        QueryError: It asks for something that a `kind` does not have.
    """
    if value is None or not wanted.selection:
        return value
    if isinstance(value, list):
        return [select(item, wanted, kind) for item in value]
    if not isinstance(value, dict):
        raise QueryError(f'Field "{wanted.name}" must not have a selection.')
    made: dict[str, Json] = {}
    for child in wanted.selection:
        if child.name not in value:
            raise QueryError(f'Cannot query field "{child.name}" on type "{kind}".')
        made[child.name] = select(value[child.name], child, child.name)
    return made
