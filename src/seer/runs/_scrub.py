"""Removes secrets from the values of a record: from texts, and from text inside pictures.

A picture contains text (a title, the program that made it, the variables of a plot). PNG compresses
it, so a plain search misses a secret there. So the text is decompressed and searched.
"""

import base64
import binascii
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from seer._redact import Redactor

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_IN_BASE64 = base64.b64encode(_PNG)[:-2].decode("ascii")
_TEXTUAL = frozenset({b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"iCCP"})
_MOST_TEXT = 16 << 20


def scrub(value: Any, redactor: Redactor) -> Any:
    """A JSON value without secrets in its keys and values."""
    if isinstance(value, str):
        return scrub_text(value, redactor)
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {redactor.redact(str(key)): scrub(item, redactor) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [scrub(item, redactor) for item in cast("Sequence[object]", value)]
    return value


def scrub_text(text: str, redactor: Redactor) -> str:
    """A text without secrets, including a text that is a picture in base64."""
    if text.startswith(_PNG_IN_BASE64):
        try:
            # Notebooks break base64 into lines.
            data = base64.b64decode(text)
        except (binascii.Error, ValueError):
            return redactor.redact(text)
        clean = scrub_bytes(data, redactor)
        if clean != data:
            return base64.b64encode(clean).decode("ascii")
    return redactor.redact(text)


def scrub_bytes(data: bytes, redactor: Redactor) -> bytes:
    """Bytes without secrets. A PNG loses the text chunks that contain one."""
    if data.startswith(_PNG):
        kept = [_PNG]
        for kind, chunk in _chunks(data):
            if kind in _TEXTUAL and _holds_secret(kind, chunk[8:-4], redactor):
                continue
            kept.append(chunk)
        data = b"".join(kept)
    return redactor.redact_bytes(data)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a PNG, each whole; bytes that are not a chunk come as one without a kind."""
    at = len(_PNG)
    while at < len(data):
        header = data[at : at + 8]
        length = struct.unpack(">I", header[:4])[0] if len(header) == 8 else len(data)
        end = at + length + 12
        if end > len(data):
            yield b"", data[at:]
            return
        yield header[4:8], data[at:end]
        at = end


def _holds_secret(kind: bytes, content: bytes, redactor: Redactor) -> bool:
    return any(
        redactor.redact(text) != text
        for packed in (content, *_unpacked(kind, content))
        for text in (packed.decode("utf-8", "replace"), packed.decode("latin-1"))
    )


def _unpacked(kind: bytes, content: bytes) -> Iterator[bytes]:
    """The decompressed text of a chunk; empty if it has none."""
    keyword, zero, rest = content.partition(b"\0")
    if kind in (b"zTXt", b"iCCP") and zero and rest:
        packed = rest[1:]
    elif kind == b"iTXt" and rest[:1] == b"\1":
        packed = rest[2:].partition(b"\0")[2].partition(b"\0")[2]
    else:
        return
    try:
        yield keyword + b"\0" + zlib.decompressobj().decompress(packed, _MOST_TEXT)
    except zlib.error:
        return
