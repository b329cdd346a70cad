"""Removes secret values from text and bytes before they are written.

Code that learns a secret (a token of the configuration, a vendor's key) calls `register_secrets`.
Code that writes records passes everything through a `Redactor`, which knows all registered
secrets, including those that are registered later. This is the last line of defence: secrets
should not get this far.

This finds only the common forms of a value. It does not stop an agent that encodes a secret.
"""

import base64
import json
import re
import threading
import urllib.parse
from collections.abc import Iterable, Iterator

MARK = "[redacted]"
_SHORTEST = 4
"""Shorter values are not replaced, because they also occur in ordinary text."""
_EDGE = 6
"""This many characters of a value, at the edge of a text, count as a part of that value."""
_CHUNK = 4 << 20

_SECRET_NAMES = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE
)

CREDENTIAL = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{20,}"
    r"|\b(?:hf|gh[oprsu]|npm|rpa)_[A-Za-z0-9]{16,}"
    r"|\b(?:glpat|pypi|xox[abprs])-[A-Za-z0-9_-]{16,}"
    r"|\bgithub_pat_[A-Za-z0-9_]{20,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bAIza[A-Za-z0-9_-]{30,}"
    # Bounded, because each part is searched again from each "eyJ".
    r"|(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{10,512}\.[A-Za-z0-9_-]{10,16384}\.[A-Za-z0-9_-]{5,}"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{12,}"
    r"|(?<=://)[^/\s:@\"']{1,200}:[^/\s@\"']{1,200}(?=@)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
    r"(?:[\s\S]{0,8000}?-----END [A-Z ]{0,40}PRIVATE KEY-----|[A-Za-z0-9+/=\s\\]*)"
)
"""Text that looks like a credential of a known vendor or protocol."""

_lock = threading.Lock()
_registered: set[str] = set()


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a credential, judged by its name alone."""
    return _SECRET_NAMES.search(name) is not None


def register_secrets(values: Iterable[str]) -> None:
    """Register values that no record may contain, for the lifetime of this process."""
    with _lock:
        _registered.update(value for value in values if value)


def known_secrets() -> frozenset[str]:
    """All values that have been registered."""
    with _lock:
        return frozenset(_registered)


class Redactor:
    """Replaces secret values in all their common forms.

    Args:
        values: Secrets in addition to the registered ones.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._own = frozenset(value for value in values if value)
        self._forms = _Forms(self._own | known_secrets())

    def redact(self, text: str, /) -> str:
        """Replace every secret in the text by a mark.

        Text comes in pieces, and a secret may be split over two of them. So the first part of a
        secret at the end of the text is also replaced, and the last part at its beginning.
        """
        return self._current().redact(text)

    def redact_bytes(self, data: bytes, /) -> bytes:
        """Overwrite every secret in the bytes with asterisks. The length does not change."""
        return self._current().redact_bytes(data)

    def _current(self) -> "_Forms":
        wanted = self._own | known_secrets()
        if wanted != self._forms.values:
            self._forms = _Forms(wanted)
        return self._forms

    def __repr__(self) -> str:
        return "Redactor(...)"


class _Forms:
    """The forms of a set of values, compiled for searching."""

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
    # Piece by piece, so that other threads can run in between.
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
        # A value has a different base64 form at each of three offsets; the inner part is constant.
        encoded = base64.b64encode(b"\0" * shift + raw).decode("ascii")
        inner = encoded[(0, 2, 3)[shift] : len(encoded) - 4]
        if len(inner) >= _SHORTEST + 4:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")


def _encodings(value: str) -> Iterator[bytes]:
    for part in {value, *value.splitlines()}:
        if len(part) >= _SHORTEST:
            # Numpy arrays of text have four bytes per character.
            for encoding in ("utf-8", "utf-16-le", "utf-32-le"):
                yield part.encode(encoding, "surrogatepass")
