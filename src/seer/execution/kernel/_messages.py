"""Makes Jupyter messages for a kernel, and checks the messages that a kernel sends."""

import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from seer.errors import ProtocolError

_DELIMITER = b"<IDS|MSG>"
_VERSION = "5.3"
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, kw_only=True)
class Message:
    """A kernel's message, reduced to the parts that a client uses."""

    kind: str
    parent: str
    """The id of the request that caused it."""
    content: Mapping[str, object]


class Signer:
    """Makes and checks messages of one connection; both ends hold its key."""

    def __init__(self) -> None:
        self.key = uuid.uuid4().hex
        self._mac = hmac.new(self.key.encode(), digestmod=hashlib.sha256)
        self._session = uuid.uuid4().hex

    def request(
        self, kind: str, content: Mapping[str, object], metadata: Mapping[str, object] | None = None
    ) -> tuple[str, list[bytes]]:
        """A request's id and its frames."""
        message_id = uuid.uuid4().hex
        header = {
            "msg_id": message_id,
            "msg_type": kind,
            "session": self._session,
            "username": "seer",
            "date": datetime.now(UTC).isoformat(),
            "version": _VERSION,
        }
        frames = [
            json.dumps(header).encode(),
            b"{}",
            json.dumps(metadata or {}).encode(),
            # Lone surrogates cannot be sent as UTF-8; JSON's escapes carry them.
            json.dumps(content).encode(),
        ]
        return message_id, [_DELIMITER, self._sign(frames), *frames]

    def read(self, frames: Sequence[bytes]) -> Message:
        """Check and decode one message.

        Raises:
            ProtocolError: It is malformed, or not signed with this key.
        """
        try:
            start = list(frames).index(_DELIMITER) + 1
        except ValueError:
            raise ProtocolError("a kernel's message has no delimiter") from None
        if len(frames) < start + 5:
            raise ProtocolError("a kernel's message is too short")
        signature, *rest = frames[start : start + 5]
        if not hmac.compare_digest(signature, self._sign(rest)):
            raise ProtocolError("a kernel's message has a wrong signature")
        header, parent, _, content = rest
        return Message(
            kind=_text(_mapping(header).get("msg_type")),
            parent=_text(_mapping(parent).get("msg_id")),
            content=_mapping(content),
        )

    def _sign(self, frames: Sequence[bytes]) -> bytes:
        mac = self._mac.copy()
        for frame in frames:
            mac.update(frame)
        return mac.hexdigest().encode()


def _mapping(data: bytes) -> dict[str, object]:
    try:
        value: object = json.loads(data.decode(errors="replace"))
        if _LONE_SURROGATE.search(data):
            # A lone surrogate cannot be encoded as UTF-8, so it can be neither stored nor sent.
            text = json.dumps(value, ensure_ascii=False).encode(errors="replace")
            value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a kernel's message is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError("a kernel's message is not a mapping")
    return cast("dict[str, object]", value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
