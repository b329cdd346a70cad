"""Keeps secrets out of records.

A secret is a value that must not be written, in any form it commonly takes in text: as it is,
inside a JSON string, in a URL, in base64. This is a last line: values are not
meant to come this far.
"""

import base64
import json
import re
import urllib.parse
from collections.abc import Iterable
from typing import Protocol

MARK = "[redacted]"
_SHORTEST = 6  # anything shorter would tear ordinary text apart


class RedactorLike(Protocol):
    """Anything that removes secrets from a text."""

    def redact(self, text: str, /) -> str:
        """The text without them."""
        ...


class Redactor:
    """Replaces the given values, wherever they stand."""

    def __init__(self, values: Iterable[str] = (), *, also: Iterable[RedactorLike] = ()) -> None:
        forms = {form for value in values if len(value) >= _SHORTEST for form in _forms(value)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None
        self._also = tuple(also)

    def redact(self, text: str, /) -> str:
        """The text with every secret replaced by a mark."""
        if self._pattern is not None:
            text = self._pattern.sub(MARK, text)
        for other in self._also:
            text = other.redact(text)
        return text


def _forms(value: str) -> set[str]:
    raw = value.encode()
    forms = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        urllib.parse.quote(value, safe=""),
        urllib.parse.quote_plus(value),
    }
    for shift in range(3):
        # In base64 a value looks different at each of three offsets; its inner part is stable.
        encoded = base64.b64encode(b"\0" * shift + raw).decode("ascii")
        inner = encoded[(0, 2, 3)[shift] : len(encoded) - 4]
        if len(inner) >= _SHORTEST + 2:
            forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return forms
