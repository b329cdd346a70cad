"""The part of ZeroMQ's wire protocol (ZMTP 3.0, no encryption) that a kernel's client needs.

A kernel runs an agent's code, so its bytes are hostile: every length is checked before anything is
kept, and a slow reader slows the writer instead of filling memory. The protocol runs over any
`Channel`, so a kernel on a remote machine is reached like one on this host. No library opens a path
in a folder that the agent can write to, so none follows a planted link.
"""

from collections.abc import Sequence

from seer.errors import ProtocolError, SandboxLostError
from seer.providers import Channel

_GREETING = (
    b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"  # signature
    b"\x03\x00"  # version 3.0: subscriptions are plain messages
    + b"NULL".ljust(20, b"\0")
    + bytes(32)  # not a server; filler
)
_MORE, _LONG, _COMMAND = 1, 2, 4
_MAX_PARTS = 64
_READ = 256 * 1024


class ZmtpConnection:
    """One connection to a ZeroMQ socket of a kernel, after the handshake."""

    def __init__(self, channel: Channel, *, limit: int) -> None:
        self._channel = channel
        self._limit = limit
        self._buffer = bytearray()

    @classmethod
    async def open(cls, channel: Channel, socket_type: str, *, limit: int) -> "ZmtpConnection":
        """Shake hands.

        Args:
            channel: A fresh connection; it is closed when the handshake fails.
            socket_type: The type of this end: `DEALER`, `SUB` or `REQ`.
            limit: The largest message, in bytes, that is kept.

        Raises:
            ProtocolError: The other end does not speak ZMTP 3.
            SandboxLostError: The other end closed the connection.
        """
        self = cls(channel, limit=limit)
        try:
            await channel.write(_GREETING)
            greeting = await self._exactly(64)
            if greeting[0] != 0xFF or greeting[9] != 0x7F or greeting[10] < 3:
                raise ProtocolError("the kernel's socket does not speak ZMTP 3")
            body = b"\x05READY" + _property(b"Socket-Type", socket_type.encode())
            await channel.write(bytes([_COMMAND, len(body)]) + body)
            flags, size = await self._frame_head()
            if not flags & _COMMAND or size > 4096:
                raise ProtocolError("the kernel's socket did not finish its handshake")
            if not (await self._exactly(size)).startswith(b"\x05READY"):
                raise ProtocolError("the kernel's socket refused the handshake")
        except BaseException:
            await channel.close()
            raise
        return self

    async def subscribe(self) -> None:
        """As a `SUB` socket: ask for every topic."""
        await self.send([b"\x01"])

    async def send(self, parts: Sequence[bytes]) -> None:
        """Send one message.

        Raises:
            SandboxLostError: The kernel's socket is gone.
        """
        last = len(parts) - 1
        out = bytearray()
        for index, part in enumerate(parts):
            flags = _MORE if index < last else 0
            if len(part) < 256:
                out += bytes([flags, len(part)])
            else:
                out += bytes([flags | _LONG]) + len(part).to_bytes(8, "big")
            out += part
        await self._channel.write(bytes(out))

    async def receive(self) -> list[bytes] | None:
        """The next message; None for one that was too large and was skipped.

        Raises:
            ProtocolError: The received bytes are not a message.
            SandboxLostError: The kernel's socket is gone.
        """
        parts: list[bytes] = []
        room = self._limit
        while True:
            flags, size = await self._frame_head()
            room -= size
            keep = room >= 0 and len(parts) < _MAX_PARTS and not flags & _COMMAND
            if keep:
                parts.append(await self._exactly(size))
            else:
                await self._skip(size)
            if flags & _COMMAND:  # a command such as a heartbeat, which is not part of a message
                room += size
                continue
            if not flags & _MORE:
                return parts if room >= 0 and len(parts) <= _MAX_PARTS and keep else None

    @property
    def has_more(self) -> bool:
        """Whether bytes of another message have arrived already."""
        return bool(self._buffer)

    async def close(self) -> None:
        """Close the connection; closing twice is harmless."""
        await self._channel.close()

    async def _frame_head(self) -> tuple[int, int]:
        head = await self._exactly(2)
        flags = head[0]
        if flags & ~(_MORE | _LONG | _COMMAND):
            raise ProtocolError(f"the kernel's socket sent a frame with flags {flags:#x}")
        if not flags & _LONG:
            return flags, head[1]
        return flags, int.from_bytes(head[1:] + await self._exactly(7), "big")

    async def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._buffer += await self._more()
        data = bytes(memoryview(self._buffer)[:count])
        del self._buffer[:count]
        return data

    async def _skip(self, count: int) -> None:
        while count > len(self._buffer):
            count -= len(self._buffer)
            self._buffer.clear()
            self._buffer += await self._more()
        del self._buffer[:count]

    async def _more(self) -> bytes:
        data = await self._channel.read(_READ)
        if not data:
            raise SandboxLostError("the kernel closed its socket")
        return data


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
