"""The frames and values that controllers, stewards and keepers exchange over byte streams.

A frame is four bytes of length (big-endian, counting kind and payload), one byte of kind, and the
payload. Structured payloads are bencoded: integers, byte strings, lists and dictionaries. Bencoding
can express file names of any bytes and needs no import. Importing `json` would take a tenth of a
machine's start time. This module has only the format: no sockets, and no protocol.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias, TypeVar

    T = TypeVar("T")
    Value: TypeAlias = "int | bytes | list[Value] | dict[str, Value]"
    Encodable: TypeAlias = "int | bytes | str | Sequence[Encodable] | Mapping[str, Encodable]"
    Message: TypeAlias = "dict[str, Value]"

VERSION = 1
FRAME_LIMIT = 8 * 1024 * 1024
"""The longest accepted frame. Requests carry whole argument lists and environments."""
CHUNK = 256 * 1024
"""The largest payload of a data frame, and the most unread input of a command."""
_DEPTH_LIMIT = 8

# Kinds of frames. From the controller:
REQUEST = b"R"
STDIN = b"0"
STDIN_END = b"Z"
SIGNAL = b"G"
KILL = b"K"
RESIZE = b"W"
RELEASE = b"L"  # the command may outlive the connection; also the acknowledgement
# From the steward or the keeper:
OK = b"O"
ERROR = b"E"
STDOUT = b"1"
STDERR = b"2"
CREDIT = b"C"
EXIT = b"X"
ENDED = b"Q"
# From both:
DATA = b"D"
END = b"F"


class WireError(ValueError):
    """The peer violated the protocol."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame, ready to send."""
    return (len(payload) + 1).to_bytes(4, "big") + kind + payload


def message(kind: bytes, /, **fields: Encodable) -> bytes:
    """One frame whose payload is a dictionary."""
    return frame(kind, encode(fields))


class Splitter:
    """Cuts a byte stream into frames, which may arrive in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next(self) -> tuple[bytes, bytes] | None:
        """The next complete frame, or None until more is fed.

        Raises:
            WireError: The frame's length is zero or beyond the limit.
        """
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        length = int.from_bytes(buffer[:4], "big")
        if not 1 <= length <= FRAME_LIMIT:
            raise WireError(f"a frame has {length} bytes; it must have 1 to {FRAME_LIMIT}")
        if len(buffer) < 4 + length:
            return None
        kind, payload = bytes(buffer[4:5]), bytes(buffer[5 : 4 + length])
        del buffer[: 4 + length]
        return kind, payload


def encode(value: Encodable) -> bytes:
    """Bencode a value. Text is encoded as the file system encodes names."""
    out: list[bytes] = []
    _encode(value, out)
    return b"".join(out)


def _encode(value: Encodable, out: list[bytes]) -> None:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        out.append(b"%d:" % len(value))
        out.append(value)
    elif isinstance(value, int):
        out.append(b"i%de" % value)
    elif isinstance(value, dict):
        out.append(b"d")
        for key, item in value.items():
            _encode(key, out)
            _encode(item, out)
        out.append(b"e")
    else:
        out.append(b"l")
        for item in value:
            _encode(item, out)
        out.append(b"e")


def decode(data: bytes) -> Value:
    """Read one bencoded value that fills `data` exactly.

    Raises:
        WireError: `data` has anything else.
    """
    value, end = _decode(data, 0, 0)
    if end != len(data):
        raise WireError(f"{len(data) - end} bytes follow the value")
    return value


def decode_message(data: bytes) -> Message:
    """Read one bencoded dictionary; raises as `decode` does."""
    value = decode(data)
    if not isinstance(value, dict):
        raise WireError(f"a dictionary was expected, not {type(value).__name__}")
    return value


def _decode(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    if depth > _DEPTH_LIMIT:
        raise WireError(f"values are nested deeper than {_DEPTH_LIMIT}")
    lead = data[at : at + 1]
    if lead == b"i":
        end = data.find(b"e", at, at + 24)
        return _integer(data[at + 1 : end] if end > 0 else b""), end + 1
    if lead.isdigit():
        return _string(data, at)
    if lead == b"l":
        items: list[Value] = []
        at += 1
        while data[at : at + 1] != b"e":
            item, at = _decode(data, at, depth + 1)
            items.append(item)
        return items, at + 1
    if lead == b"d":
        fields: dict[str, Value] = {}
        at += 1
        while data[at : at + 1] != b"e":
            key, at = _string(data, at)
            fields[to_text(key)], at = _decode(data, at, depth + 1)
        return fields, at + 1
    raise WireError(f"no value starts with {lead!r}")


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    colon = data.find(b":", at, at + 12)
    if colon < 0 or not data[at:colon].isdigit():
        raise WireError("a string has no length")
    start, end = colon + 1, colon + 1 + int(data[at:colon])
    if end > len(data):
        raise WireError("a string is truncated")
    return data[start:end], end


def _integer(digits: bytes) -> int:
    if not (digits[1:] if digits[:1] == b"-" else digits).isdigit():
        raise WireError(f"not an integer: {digits!r}")
    return int(digits)


def to_text(value: bytes) -> str:
    """Bytes of a file name or other system string as text, without loss."""
    return value.decode("utf-8", "surrogateescape")


# Typed access to the messages of an untrusted peer.


def get_bytes(fields: Message, key: str, default: bytes | None = None) -> bytes:
    """A byte string of a message; raises `WireError` for another type."""
    value = fields.get(key, default)
    if not isinstance(value, bytes):
        raise WireError(f"{key!r} must be a string")
    return value


def get_text(fields: Message, key: str, default: str | None = None) -> str:
    """A byte string of a message as text; raises `WireError` for another type."""
    return to_text(get_bytes(fields, key, None if default is None else default.encode()))


def get_int(fields: Message, key: str, default: int | None = None) -> int:
    """An integer of a message; raises `WireError` for another type."""
    value = fields.get(key, default)
    if not isinstance(value, int):
        raise WireError(f"{key!r} must be an integer")
    return value


def get_list(fields: Message, key: str) -> list[bytes]:
    """A list of byte strings of a message; empty if absent."""
    return _items(fields, key, bytes, "strings")


def get_ints(fields: Message, key: str) -> list[int]:
    """A list of integers of a message; empty if absent."""
    return _items(fields, key, int, "integers")


def _items(fields: Message, key: str, kind: type[T], what: str) -> list[T]:
    value = fields.get(key, [])
    if not isinstance(value, list):
        raise WireError(f"{key!r} must be a list")
    items: list[T] = []
    for item in value:
        if not isinstance(item, kind):
            raise WireError(f"{key!r} must be a list of {what}")
        items.append(item)
    return items


def get_env(fields: Message, key: str) -> dict[bytes, bytes]:
    """An environment of a message, for `os.execve`; empty if absent."""
    env: dict[bytes, bytes] = {}
    for name, value in get_dict(fields, key).items():
        if not isinstance(value, bytes):
            raise WireError(f"environment variable {name!r} must be a string")
        env[name.encode("utf-8", "surrogateescape")] = value
    return env


def get_dict(fields: Message, key: str) -> Message:
    """A dictionary of a message; empty if absent."""
    value = fields.get(key, {})
    if not isinstance(value, dict):
        raise WireError(f"{key!r} must be a dictionary")
    return value
