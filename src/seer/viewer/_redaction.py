"""Removes private data from a run before it is shared.

It removes secrets (text that looks like a credential, credentials in this user's environment, and
texts that the user names), paths (the user's home, the program's folder, and user names in other
home folders), and fields by name. It works on recorded text. It cannot search pictures and arrays,
so the user can leave those out.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from seer._redact import CREDENTIAL, MARK, Redactor, is_secret_name
from seer.errors import ConfigError

_HOMES = re.compile(r"(/(?:home|Users)/)(?!\[)[^/\s:\"'<>]+|(?<![\w.])/root(?![\w.-])")


@dataclass(frozen=True, kw_only=True)
class Redaction:
    """What to remove from a run before it is shared."""

    secrets: tuple[str, ...] = ()
    """Texts to replace everywhere, besides text that looks like a credential."""
    fields: tuple[str, ...] = ()
    """Names of fields to remove, at any depth: `system_prompt`, `thinking`, an argument ..."""
    paths: bool = True
    """Whether to shorten paths that show who you are or where you work."""
    images: bool = True
    """Whether to keep pictures. They cannot be searched for secrets."""
    arrays: bool = True
    """Whether to keep the arrays of gate calls. They cannot be searched either."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Redaction":
        """The redaction that a request describes.

        Raises:
            ConfigError: A field is unknown or malformed.
        """
        given: dict[str, Any] = {}
        known = {item.name: item.default for item in fields(cls)}
        for name, value in data.items():
            if name not in known:
                raise ConfigError("redact", name, f"is unknown; known: {sorted(known)}")
            if isinstance(known[name], bool):
                if not isinstance(value, bool):
                    raise ConfigError(f"redact.{name}", value, "must be true or false")
                given[name] = value
                continue
            items: list[Any] = [*cast("list[Any]", value)] if isinstance(value, list) else [value]
            if not all(isinstance(item, str) for item in items):
                raise ConfigError(f"redact.{name}", items, "must be a list of texts")
            given[name] = tuple(item for item in items if item)
        return cls(**given)


@dataclass
class Scrubber:
    """Applies a redaction, and counts what it removes."""

    redaction: Redaction
    folder: str = ""
    """The folder of the recorded program, which is a path to shorten."""
    counts: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        environment = [v for name, v in os.environ.items() if is_secret_name(name)]
        self._named = Redactor([*self.redaction.secrets, *environment])
        short = [text for text in self.redaction.secrets if 0 < len(text) < 4]
        self._short = re.compile("|".join(map(re.escape, short))) if short else None
        homes = {path for path in (str(Path.home()), self.folder) if len(path) > 1}
        # The longest first, so that a folder inside the home folder is replaced as a whole.
        self._own = [
            re.compile(re.escape(path) + r"(?![\w.-])") for path in sorted(homes, key=len)[::-1]
        ]

    def text(self, text: str) -> str:
        """A text without secrets and paths."""
        named = self._named.redact(text)
        self.counts["secrets"] += named.count(MARK) - text.count(MARK)
        text = named
        if self._short is not None:
            text = self._replace("secrets", self._short, MARK, text)
        text = self._replace("secrets", CREDENTIAL, MARK, text)
        if self.redaction.paths:
            for pattern in self._own:
                text = self._replace("paths", pattern, "…", text)
            text = self._replace("paths", _HOMES, lambda m: (m[1] or "/") + MARK, text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value without secrets, paths and the fields that were named."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {
                self.text(key): self._field(key, item)
                for key, item in cast("dict[str, Any]", value).items()
            }
        return value

    def json_text(self, text: str) -> str:
        """A text that may be JSON, such as arguments; fields are removed inside it too."""
        if any(name in text for name in self.redaction.fields):
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                return self.text(text)
            if isinstance(found, (dict, list)):
                return json.dumps(self.value(found), separators=(",", ":"))
        return self.text(text)

    def hides(self, name: str) -> bool:
        """Whether a field is removed as a whole."""
        return name in self.redaction.fields

    def _field(self, name: str, item: Any) -> Any:
        # On disk, a key that begins with `$` is escaped as `$$`.
        plain = name.removeprefix("$") if name.startswith("$$") else name
        if not self.hides(plain):
            return self.value(item)
        self.counts["fields"] += 1
        return MARK if isinstance(item, str) else None

    def _replace(
        self,
        kind: str,
        pattern: re.Pattern[str],
        by: str | Callable[[re.Match[str]], str],
        text: str,
    ) -> str:
        text, count = pattern.subn(by, text)
        self.counts[kind] += count
        return text
