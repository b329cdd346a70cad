"""Blinding: names and paths of hidden models are replaced wherever an agent could read them.

A hidden model's name has many spellings: the hub id, the folder and the variable that are made from
it, and its last part. `Scrubber` replaces all of them with the alias, in text, JSON and bytes.
It does not recognise a name that is split, compressed or turned into numbers, and it cannot hide
what a model's behaviour gives away.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

_SHORTEST = 4
"""Shorter parts of a name (`org`, `v2`) are not replaced, because they are often ordinary words."""
_VERSIONED = 5
"""Words of this many letters or more are also replaced before a number: `quagga2`, not `base64`."""
_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
_INSTEAD = "hidden"


class Scrubber:
    """Replaces every spelling of a hidden model's name with its alias."""

    def __init__(self, hidden: Mapping[str, str], models: Mapping[str, str]) -> None:
        self._aliases: dict[str, str] = {}
        for name, alias in hidden.items():
            for spelling in _spellings(name, models.get(name, "")):
                if spelling.lower() not in alias.lower():
                    self._aliases.setdefault(spelling.lower(), alias)
        self._replace = _replacer(self._aliases)
        self._replace_json = _replacer(
            {
                json.dumps(key, ensure_ascii=escaped)[1:-1].lower(): alias
                for key, alias in self._aliases.items()
                for escaped in (True, False)
            }
        )
        self._replace_bytes = [
            _byte_replacer(self._aliases, encoding) for encoding in _ENCODINGS if self._aliases
        ]

    def text(self, text: str) -> str:
        """The text with aliases instead of hidden names."""
        return self._replace(text)

    def data(self, data: bytes) -> bytes:
        """The same for encoded JSON, which stays valid because aliases need no quoting."""
        if not self._aliases:
            return data
        text = self._replace_json(data.decode("utf-8", "surrogatepass"))
        return text.encode("utf-8", "surrogatepass")

    def value(self, value: str | bytes) -> str | bytes:
        """The same for text, or for bytes in every usual encoding."""
        if isinstance(value, str):
            return self._replace(value)
        for replace in self._replace_bytes:
            value = replace(value)
        return value


def _spellings(name: str, path: str) -> set[str]:
    last = name.rstrip("/").rpartition("/")[2]
    found = {name, name.replace("/", "--"), name.replace("/", "_"), name.replace("/", "-"), last}
    found |= {re.sub(r"[^0-9A-Za-z]", "_", spelling) for spelling in (name, last)}
    found |= {path, path.rstrip("/").rpartition("/")[2]}
    return {spelling for spelling in found if len(spelling) >= _SHORTEST}


def _replacer(aliases: Mapping[str, str]) -> Callable[[str], str]:
    if not aliases:
        return lambda text: text
    pattern = re.compile("|".join(map(_pattern, _longest_first(aliases))), re.IGNORECASE)
    # With IGNORECASE, some letters match others that have a different lower case.
    return lambda text: pattern.sub(lambda found: aliases.get(found[0].lower(), _INSTEAD), text)


def _pattern(spelling: str) -> str:
    """The pattern for a spelling. A plain word must stand alone: `base` does not match `database`.

    A number may follow a longer word, as in the name of a version.
    """
    text = re.escape(spelling)
    if not spelling.isalpha():
        return text
    after = r"[^\W\d_]" if len(spelling) >= _VERSIONED else r"[^\W_]"
    return rf"(?<![^\W_]){text}(?!{after})"


def _byte_replacer(aliases: Mapping[str, str], encoding: str) -> Callable[[bytes], bytes]:
    pad = b"\\x00" * (len("a".encode(encoding)) - 1)

    def one_of(letters: bytes) -> bytes:
        return pad + letters if encoding.endswith("be") else letters + pad

    patterns: list[bytes] = []
    for spelling in _longest_first(aliases):
        text = re.escape(spelling.encode(encoding))
        after = b"[A-Za-z]" if len(spelling) >= _VERSIONED else b"[0-9A-Za-z]"
        alone = b"(?<!%s)%s(?!%s)" % (one_of(b"[0-9A-Za-z]"), text, one_of(after))
        patterns.append(alone if spelling.isalpha() else text)
    encoded = {key.encode(encoding): alias.encode(encoding) for key, alias in aliases.items()}
    instead = _INSTEAD.encode(encoding)
    pattern = re.compile(b"|".join(patterns), re.IGNORECASE)
    return lambda data: pattern.sub(lambda found: encoded.get(found[0].lower(), instead), data)


def _longest_first(aliases: Mapping[str, str]) -> list[str]:
    """The longest first, so that a path is replaced as a whole."""
    return sorted(aliases, key=len, reverse=True)
