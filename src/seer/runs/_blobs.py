"""Keeps large values outside the lines, in files named by the hash of their content.

`pack` moves the large parts of a JSON value into blobs, and `unpack` puts them back. In a line, a
blob is written as `{"$blob": "<sha256>", "bytes": n}`. An agent can send keys that begin with `$`.
They are escaped, so that no value can pose as a blob.
"""

import base64
import binascii
import hashlib
from pathlib import Path
from typing import Any, cast

from seer._files import replace_file
from seer._redact import Redactor
from seer.errors import RecordError
from seer.runs._scrub import scrub_bytes, scrub_text

INLINE = 4096
"""Texts up to this many characters stay in the line."""
_HEX = frozenset("0123456789abcdef")


class BlobStore:
    """A folder of blobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, digest: str) -> Path:
        """The path of a blob, which may not exist.

        Raises:
            RecordError: `digest` is not a hash, so it must not become a path.
        """
        if len(digest) != 64 or not _HEX.issuperset(digest):
            raise RecordError(f"{digest!r} is not the name of a blob")
        return self._folder / digest[:2] / digest

    def put(self, data: bytes) -> str:
        """Keep `data`; returns its name. The same content is kept once.

        Raises:
            OSError: It cannot be written, such as on a full disk.
        """
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if path.exists():
            return digest
        # Do not make parents: a run's folder that was removed must not come back with only blobs.
        self._folder.mkdir(exist_ok=True)
        path.parent.mkdir(exist_ok=True)
        replace_file(path, data)
        return digest

    def get(self, digest: str) -> bytes:
        """The content of a blob.

        Raises:
            RecordError: It is missing, or its content does not match its name.
        """
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise RecordError(f"{path}: the content was changed after it was written")
        return data


def pack(value: Any, blobs: BlobStore, redactor: Redactor) -> Any:
    """`value` with secrets removed and large parts kept as blobs."""
    if isinstance(value, str):
        text = scrub_text(value, redactor)
        if len(text) <= INLINE:
            return text
        data = text.encode("utf-8", "surrogatepass")
        return {"$blob": blobs.put(data), "bytes": len(data)}
    if isinstance(value, list):
        return [pack(item, blobs, redactor) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        blob = _binary(mapping, blobs, redactor) if mapping.get("encoding") == "base64" else None
        packed = {
            _escape(redactor.redact(key)): pack(item, blobs, redactor)
            for key, item in mapping.items()
            if blob is None or key != "data"
        }
        return packed if blob is None else {**packed, "data": blob}
    return value


def unpack(value: Any, blobs: BlobStore) -> Any:
    """The value that `pack` took, without the secrets."""
    if isinstance(value, list):
        return [unpack(item, blobs) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        if "$blob" in mapping:
            data = blobs.get(str(mapping["$blob"]))
            if mapping.get("encoding") == "base64":
                return base64.b64encode(data).decode("ascii")
            return data.decode("utf-8", "surrogatepass")
        return {
            key[1:] if key.startswith("$") else key: unpack(item, blobs)
            for key, item in mapping.items()
        }
    return value


def _binary(mapping: dict[str, Any], blobs: BlobStore, redactor: Redactor) -> dict[str, Any] | None:
    """The blob for base64 data; None if the text is not base64, which is kept as text."""
    text = mapping.get("data")
    if not isinstance(text, str):
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if base64.b64encode(data).decode("ascii") != text:
        return None
    data = scrub_bytes(data, redactor)
    return {"$blob": blobs.put(data), "bytes": len(data), "encoding": "base64"}


def _escape(key: str) -> str:
    return "$" + key if key.startswith("$") else key
