"""The blobs of a record: large texts and arrays, each kept once under its SHA-256."""

from __future__ import annotations

import hashlib
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

INLINE_TEXT = 64 * 1024
"""JSON text up to this size stands in the line itself."""
MAX_KEPT = 16 << 30
"""Bytes of blobs to keep in all; of what comes later only the digests are."""


class Blobs:
    """A folder of blobs.

    Args:
        folder: The folder; made if need be.
        keep: Whether blobs are written, or only their digests.
        notify: Told when there is no more room.
    """

    def __init__(self, folder: str, *, keep: bool, notify: Callable[[str], None]) -> None:
        self._folder = folder
        self._keep = keep
        self._notify = notify
        self._kept = 0

    def text(self, text: bytes) -> bytes:
        """JSON text as it stands in a line: itself, or a reference to its blob."""
        if len(text) <= INLINE_TEXT:
            return text if text.isascii() else _utf8(text)
        return json.dumps({"blob": self.add(memoryview(text))}).encode()

    def add(self, view: memoryview) -> dict[str, Any]:
        """Keep a blob; how a line refers to it."""
        name = hashlib.sha256(view).hexdigest()
        if self._keep:
            self._store(name, view)
        return {"sha256": name, "bytes": len(view)}

    def _store(self, name: str, view: memoryview) -> None:
        path = f"{self._folder}/{name}"
        if os.path.exists(path):  # noqa: PTH110 (import time)
            return
        if self._kept + len(view) > MAX_KEPT:
            self._keep = False
            self._notify(f"the record holds {self._kept} bytes of arrays; no more are kept")
            return
        self._kept += len(view)
        os.makedirs(self._folder, exist_ok=True)  # noqa: PTH103 (import time)
        partial = f"{path}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(partial, flags, 0o600)
        try:
            written = 0
            while written < len(view):
                written += os.write(fd, view[written : written + (1 << 24)])
        except OSError:
            os.unlink(partial)  # noqa: PTH108 (import time)
            raise
        finally:
            os.close(fd)
        os.rename(partial, path)  # noqa: PTH104 (import time)


def _utf8(text: bytes) -> bytes:
    """JSON text that any reader takes: lone surrogates, which the wire allows, are escaped."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return json.dumps(json.loads(text.decode("utf-8", "surrogatepass"))).encode()
    return text
