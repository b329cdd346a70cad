"""Secret values that this process knows, and texts and bytes without them.

Whoever learns a secret (a token of the configuration, a key of a vendor) says so with
`register_secrets`; whoever writes something down passes it through a `Redactor`, which knows all
of them, also those that are registered later. This is a last line: values are not meant to come
this far.

Not a defence against an agent that hides what it prints: only forms that a value commonly takes
are found.
"""

import base64
import json
import re
import threading
import urllib.parse
from collections.abc import Iterable, Iterator

MARK = "[redacted]"
_SHORTEST = 4
"""Shorter values would also match ordinary text; replacing them would only destroy it."""
_EDGE = 6
"""How much of a value must stand at the edge of a text to be taken for a part of it."""
_CHUNK = 4 << 20

_lock = threading.Lock()
_registered: set[str] = set()


def register_secrets(values: Iterable[str]) -> None:
    """Note values that no record may hold. They are remembered as long as this process lives."""
    with _lock:
        _registered.update(value for value in values if value)


def known_secrets() -> frozenset[str]:
    """All that were registered so far."""
    with _lock:
        return frozenset(_registered)


class Redactor:
    """Replaces secret values, in every form in which they are likely to appear.

    Args:
        values: Secrets beside those that are registered.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._own = frozenset(value for value in values if value)
        self._forms = _Forms(self._own | known_secrets())

    def redact(self, text: str, /) -> str:
        """The text with every secret replaced by a mark.

        So are the beginning of a secret at its end and the end of one at its beginning: texts
        come in pieces, and a secret may stand across two of them.
        """
        return self._current().redact(text)

    def redact_bytes(self, data: bytes, /) -> bytes:
        """The bytes with every secret covered by asterisks; the length stays what it is."""
        return self._current().redact_bytes(data)

    def _current(self) -> "_Forms":
        wanted = self._own | known_secrets()
        if wanted != self._forms.values:
            self._forms = _Forms(wanted)
        return self._forms

    def __repr__(self) -> str:
        return "Redactor(...)"


class _Forms:
    """The forms of a set of values, ready to be looked for."""

    def __init__(self, values: frozenset[str]) -> None:
        self.values = values
        forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST}
        self._pattern = _alternatives(forms)
        long = {form for form in forms if len(form) > _EDGE}
        self._beginnings = _alternatives({form[:_EDGE] for form in long})
        self._ends = _alternatives({form[-_EDGE:] for form in long})
        self._long = tuple(long)
        self._longest = max(map(len, forms), default=0)
        self._raw = {code for value in values for code in _encodings(value)}

    def redact(self, text: str) -> str:
        if self._pattern is None:
            return text
        text = self._pattern.sub(MARK, text)
        if self._beginnings is not None and self._ends is not None:
            text = self._redact_end(text, self._beginnings)
            text = self._redact_beginning(text, self._ends)
        return text

    def _redact_end(self, text: str, beginnings: "re.Pattern[str]") -> str:
        start = max(0, len(text) - self._longest)
        while (found := beginnings.search(text, start)) is not None:
            rest = text[found.start() :]
            if any(form.startswith(rest) for form in self._long):
                return text[: found.start()] + MARK
            start = found.start() + 1
        return text

    def _redact_beginning(self, text: str, ends: "re.Pattern[str]") -> str:
        last = -1
        start = 0
        while (found := ends.search(text, start, self._longest)) is not None:
            first = text[: found.end()]
            if any(form.endswith(first) for form in self._long):
                last = found.end()
            start = found.start() + 1
        return text if last < 0 else MARK + text[last:]

    def redact_bytes(self, data: bytes) -> bytes:
        places = [place for code in self._raw for place in _find(data, code)]
        if not places:
            return data
        covered = bytearray(data)
        for start, end in places:
            covered[start:end] = b"*" * (end - start)
        return bytes(covered)


def _find(data: bytes, code: bytes) -> Iterator[tuple[int, int]]:
    # Piece by piece, so that other threads get the interpreter in between.
    for begin in range(0, len(data), _CHUNK):
        end = begin + _CHUNK + len(code) - 1
        at = data.find(code, begin, end)
        while at >= 0:
            yield at, at + len(code)
            at = data.find(code, at + 1, end)


def _alternatives(forms: set[str]) -> "re.Pattern[str] | None":
    if not forms:
        return None
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    return re.compile("|".join(map(re.escape, longest_first)))


def _forms(value: str) -> set[str]:
    forms: set[str] = set()
    for part in {value, value.strip(), *value.splitlines()}:
        if len(part) < _SHORTEST:
            continue
        forms |= {
            part,
            repr(part)[1:-1],
            json.dumps(part)[1:-1],
            json.dumps(part, ensure_ascii=False)[1:-1],
            urllib.parse.quote(part, errors="surrogatepass"),
            urllib.parse.quote(part, safe="", errors="surrogatepass"),
            urllib.parse.quote_plus(part, errors="surrogatepass"),
        }
        forms.update(_in_base64(part))
    return forms


def _in_base64(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogatepass")
    for shift in range(3):
        # In base64 a value looks different at each of three offsets; its inner part is stable.
        encoded = base64.b64encode(b"\0" * shift + raw).decode("ascii")
        inner = encoded[(0, 2, 3)[shift] : len(encoded) - 4]
        if len(inner) >= _SHORTEST + 4:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")


def _encodings(value: str) -> Iterator[bytes]:
    for part in {value, *value.splitlines()}:
        if len(part) >= _SHORTEST:
            # Arrays of texts hold four bytes for a character.
            for encoding in ("utf-8", "utf-16-le", "utf-32-le"):
                yield part.encode(encoding, "surrogatepass")
