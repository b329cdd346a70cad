"""Blinding: names and paths of hidden models are replaced wherever an agent could read them.

A hidden model's name shows up in many spellings: the hub id, the folder made from it, the variable
made from it, the bare last part. `Scrubber` knows them all and puts the alias in their place. It
works on text; what a model's behaviour gives away it cannot know.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SHORTEST = 4
"""Shorter parts of a name (`org`, `v2`) are ordinary words too often to be replaced."""


class Scrubber:
    """Replaces every spelling of hidden models by their aliases."""

    def __init__(self, hidden: Mapping[str, str], models: Mapping[str, str]) -> None:
        self._aliases: dict[str, str] = {}
        for name, alias in hidden.items():
            for spelling in _spellings(name, models.get(name, "")):
                if spelling.lower() not in alias.lower():
                    self._aliases.setdefault(spelling.lower(), alias)
        # The longest first, so that a path goes as a whole.
        spellings = sorted(self._aliases, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(_pattern, spellings)), re.IGNORECASE)

    def text(self, text: str) -> str:
        """The text with aliases in place of hidden names."""
        if not self._aliases:
            return text
        # Ignoring case, some letters match others whose lower case they do not share.
        return self._pattern.sub(lambda match: self._aliases.get(match[0].lower(), "hidden"), text)

    def data(self, data: bytes) -> bytes:
        """The same for encoded JSON; it stays valid, since aliases need no quoting."""
        if not self._aliases:
            return data
        return self.text(data.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass")


def _spellings(name: str, path: str) -> set[str]:
    last = name.rstrip("/").rpartition("/")[2]
    found = {name, name.replace("/", "--"), name.replace("/", "_"), name.replace("/", "-"), last}
    found |= {re.sub(r"[^0-9A-Za-z]", "_", spelling) for spelling in (name, last)}
    found |= {path, path.rstrip("/").rpartition("/")[2]}
    return {spelling for spelling in found if len(spelling) >= _SHORTEST}


def _pattern(spelling: str) -> str:
    """A plain word is replaced only where it stands alone: `base` is no part of `database`."""
    text = re.escape(spelling)
    return rf"(?<![^\W_]){text}(?![^\W_])" if spelling.isalpha() else text
