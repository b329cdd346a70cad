"""Messages between the supervisor and the interface process: JSON, with descriptors alongside."""

from __future__ import annotations

import json
import struct
import time
from typing import TYPE_CHECKING

from seer.rpc.wire._descriptors import SPACE, received, rights
from seer.rpc.wire._protocol import CANNOT_PASS

if TYPE_CHECKING:
    import socket
    from typing import Any

_LENGTH = struct.Struct("<I")
PATIENCE = 1.0
"""Seconds that a message waits while the kernel passes no more descriptors."""


def framed(message: dict[str, Any], descriptors: int) -> bytes:
    """A message as a channel carries it, with the number of descriptors that travel with it."""
    text = json.dumps({**message, "descriptors": descriptors}).encode()
    return _LENGTH.pack(len(text)) + text


class Channel:
    """One end of a socket pair. Both ends trust each other."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        """The descriptor, for polling."""
        return self.socket.fileno()

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Send a message, waiting if need be.

        Raises:
            OSError: The other end is gone, or descriptors cannot be passed (`CANNOT_PASS`).
        """
        data = memoryview(framed(message, len(descriptors or ())))
        sent = self._send_first(data[:65536], rights(descriptors or ()))
        while sent < len(data):
            sent += self.socket.send(data[sent:])

    def _send_first(self, data: memoryview, control: list[Any]) -> int:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self.socket.sendmsg([data], control)
            except OSError as error:
                if error.errno not in CANNOT_PASS or time.monotonic() > until:
                    raise
                # Others of this user have too many descriptors on their way just now.
                time.sleep(0.02)

    def receive(self) -> list[tuple[dict[str, Any], list[int]]] | None:
        """Read what is there; the messages that are whole now, or None at the end.

        Descriptors go with the first message that is read together with them: messages that carry
        some are answered before the next is sent.
        """
        try:
            data, ancillary, _, _ = self.socket.recvmsg(1 << 20, SPACE)
        except ConnectionError:
            return None
        if not data:
            return None
        self._descriptors += received(ancillary)
        self._buffer += data
        messages: list[tuple[dict[str, Any], list[int]]] = []
        while len(self._buffer) >= 4:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < 4 + size:
                break
            message: dict[str, Any] = json.loads(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
            count = message.pop("descriptors", 0)
            taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
            messages.append((message, taken))
        return messages

    def rest(self) -> list[tuple[dict[str, Any], list[int]]]:
        """All messages that are still there, once the process at the other end is gone.

        It waits for no end: a process that it forked may have kept its end open.
        """
        self.socket.setblocking(False)
        found: list[tuple[dict[str, Any], list[int]]] = []
        try:
            while (messages := self.receive()) is not None:
                found += messages
        except BlockingIOError:
            return found
        return found

    def close(self) -> None:
        """Close this end."""
        self.socket.close()
