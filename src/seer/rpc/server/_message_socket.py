"""Messages between the supervisor and the interface process: JSON, with descriptors alongside."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from seer.rpc.wire._descriptors import SPACE, close_all, duplicates, received, rights
from seer.rpc.wire._protocol import CANNOT_PASS

_LENGTH = struct.Struct("<I")
PATIENCE = 1.0
"""Seconds that a message waits while the kernel passes no more descriptors."""


def framed(message: dict[str, Any], descriptors: int) -> bytes:
    """The bytes of a message, which include the number of descriptors that travel with it."""
    text = json.dumps({**message, "descriptors": descriptors} if descriptors else message).encode()
    return _LENGTH.pack(len(text)) + text


class MessageSocket:
    """One end of a socket pair. Both ends trust each other.

    The supervisor sends with `post`: an interface that loads for minutes reads nothing meanwhile.
    The other end sends with `send`, because the supervisor always reads.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self._unsent: deque[tuple[memoryview, Sequence[int]]] = deque()

    def fileno(self) -> int:
        """The descriptor, for polling."""
        return self.socket.fileno()

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Send a message, waiting if need be.

        Raises:
            OSError: The other end is gone, or descriptors cannot be passed (`CANNOT_PASS`).
        """
        data = memoryview(framed(message, len(descriptors or ())))
        sent = self._send_first(data[:65536], rights(descriptors or ()), 0)
        while sent < len(data):
            sent += self.socket.send(data[sent:])

    def _send_first(self, data: memoryview, control: list[Any], flags: int) -> int:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self.socket.sendmsg([data], control, flags)
            except OSError as error:
                if error.errno not in CANNOT_PASS or time.monotonic() > until:
                    raise
                # Processes of this user have too many descriptors in flight just now.
                time.sleep(0.02)

    def post(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Send a message without waiting for the other end to read; `flush` sends what is left.

        Raises:
            OSError: As for `send`.
        """
        data = memoryview(framed(message, len(descriptors or ())))
        sent = 0
        if not self._unsent:
            with suppress(BlockingIOError):
                sent = self._send_first(data, rights(descriptors or ()), socket.MSG_DONTWAIT)
                descriptors = None
        if sent < len(data):
            self._unsent.append((data[sent:], duplicates(descriptors or ())))

    def flush(self) -> None:
        """Send more of what `post` could not send, as far as the other end has room."""
        while self._unsent:
            data, descriptors = self._unsent[0]
            try:
                sent = self.socket.sendmsg([data], rights(descriptors), socket.MSG_DONTWAIT)
            except OSError:
                # There is no room, descriptors cannot be passed just now, or the other end is gone,
                # which its owner notices by itself.
                return
            close_all(descriptors)
            if sent < len(data):
                self._unsent[0] = (data[sent:], ())
            else:
                self._unsent.popleft()

    def receive(self) -> list[dict[str, Any]] | None:
        """Read the messages that have arrived; None at the end of the stream.

        A message that was sent with descriptors has them as `descriptors`. Both arrive in the
        order in which they were sent.
        """
        try:
            data, ancillary, _, _ = self.socket.recvmsg(1 << 20, SPACE)
        except ConnectionError:
            return None
        if not data:
            return None
        self._descriptors += received(ancillary)
        self._buffer += data
        messages: list[dict[str, Any]] = []
        while len(self._buffer) >= 4:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < 4 + size:
                break
            message: dict[str, Any] = json.loads(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
            if "descriptors" in message:
                count = message["descriptors"]
                message["descriptors"] = self._descriptors[:count]
                del self._descriptors[:count]
            messages.append(message)
        return messages

    def rest(self) -> list[dict[str, Any]]:
        """Read the remaining messages of a process that has ended.

        This does not wait for the end of the stream: a process that the other end forked may still
        hold the socket.
        """
        self.socket.setblocking(False)
        found: list[dict[str, Any]] = []
        try:
            while (messages := self.receive()) is not None:
                found += messages
        except BlockingIOError:
            return found
        return found

    def close(self) -> None:
        """Close this end."""
        self.socket.close()
        while self._unsent:
            close_all(self._unsent.popleft()[1])
