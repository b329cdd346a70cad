"""A socket on this host that forwards its connections to a socket in a remote machine.

A process that can connect to the file acts as one caller, as with a gate's own socket. The
connection to the machine, with its credentials, stays in the controller. If a connection breaks,
the relay closes it. The caller may then connect again, because it knows the ids of its calls.
"""

import asyncio
import contextlib
import logging
import socket
from typing import cast

from seer._sockets import Acceptor
from seer._transient import TransientFolder
from seer._unix_sockets import listen
from seer.errors import RemoteFileError, SandboxLostError
from seer.providers._base import Machine
from seer.providers.client._channel import StreamChannel
from seer.providers.client._connection import READ_LIMIT
from seer.providers.client._interfaces import Channel, HostSocket

logger = logging.getLogger(__name__)

_CHUNK = 256 * 1024
_SOCKET = "gate.sock"


class Relay(HostSocket):
    """Forwards connections until it is closed."""

    relayed = True

    def __init__(
        self, machine: Machine, target: str, listener: socket.socket, folder: TransientFolder
    ) -> None:
        super().__init__(folder.path / _SOCKET)
        self._machine = machine
        self._target = target
        self._folder = folder
        self._acceptor = Acceptor(listener, self._pass)

    @classmethod
    async def open(cls, machine: Machine, target: str) -> "Relay":
        """Listen in a fresh folder for connections to `target` in the machine."""
        # Short, because tools such as curl accept paths of at most 107 bytes.
        folder = TransientFolder("gate")
        try:
            # Other users cannot enter the folder. A jail sees only the socket in it.
            listener = listen(folder.path / _SOCKET, 512, mode=0o666)
        except BaseException:
            folder.remove()
            raise
        return cls(machine, target, listener, folder)

    async def close(self) -> None:
        """Stop listening, and close every connection."""
        await self._acceptor.close()
        self._folder.remove()

    async def _pass(self, near: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=near, limit=READ_LIMIT)
        channel = StreamChannel(reader, writer, hung_up)
        try:
            far = await self._machine.connect(self._target)
        except (SandboxLostError, RemoteFileError) as error:
            logger.info("a connection to %s could not be forwarded: %s", self._target, error)
            await channel.close()
            return
        except BaseException:
            await asyncio.shield(channel.close())
            raise
        await relay(channel, far)


async def relay(one: Channel, other: Channel) -> None:
    """Copy bytes both ways until both directions end, then close both channels."""
    try:
        if isinstance(one, StreamChannel) and isinstance(other, StreamChannel):
            await splice(one.streams, other.streams)
        else:
            await _copy_both_ways(one, other)
    finally:
        await asyncio.shield(asyncio.gather(one.close(), other.close()))


async def _copy_both_ways(one: Channel, other: Channel) -> None:
    async def copy(source: Channel, target: Channel) -> None:
        with contextlib.suppress(SandboxLostError):
            while data := await source.read(_CHUNK):
                await target.write(data)

    ways = [asyncio.create_task(copy(one, other)), asyncio.create_task(copy(other, one))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def hung_up() -> SandboxLostError:
    """The error for a connection that ended for an unknown reason."""
    return SandboxLostError("the other side has hung up")


class _Joined(asyncio.Protocol):
    """Copies everything that arrives on one transport to the other."""

    def __init__(
        self, former: asyncio.BaseProtocol, target: asyncio.WriteTransport, over: asyncio.Event
    ) -> None:
        self._former = former
        self._target = target
        self._over = over
        self.source: asyncio.ReadTransport | None = None
        self.peer: _Joined | None = None
        self.ended = False

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        self._target.write(data)

    def eof_received(self) -> bool:
        """Pass on the end; the other direction may continue."""
        self.ended = True
        if self._target.can_write_eof() and not self._target.is_closing():
            self._target.write_eof()
        if self.peer is not None and self.peer.ended:
            self._over.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of both directions."""
        # The former protocol counts connections, and wakes tasks that wait for this one to close.
        self._former.connection_lost(exc)
        self._over.set()

    def pause_writing(self) -> None:
        """Pause the source: this transport's buffer is full."""
        if self.source is not None and not self.source.is_closing():
            self.source.pause_reading()

    def resume_writing(self) -> None:
        """Resume the source."""
        if self.source is not None and not self.source.is_closing():
            self.source.resume_reading()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def splice(one: Streams, other: Streams) -> None:
    """Copy bytes both ways until both streams end or one is lost. The caller closes both."""
    over = asyncio.Event()
    transports = [_transport(one[1]), _transport(other[1])]
    joined = [
        _Joined(transports[0].get_protocol(), transports[1], over),
        _Joined(transports[1].get_protocol(), transports[0], over),
    ]
    for (reader, _), own, foreign in ((one, 0, 1), (other, 1, 0)):
        joined[own].source = transports[foreign]
        joined[own].peer = joined[foreign]
        transports[own].set_protocol(joined[own])
        # Forward the bytes that have already arrived.
        held = bytes(reader._buffer)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
        if held:
            joined[own].data_received(held)
        if reader.at_eof() or reader._eof:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            joined[own].eof_received()
        if not transports[own].is_closing():
            transports[own].resume_reading()
    if any(transport.is_closing() for transport in transports):
        over.set()
    await over.wait()


def _transport(writer: asyncio.StreamWriter) -> asyncio.Transport:
    return cast("asyncio.Transport", writer.transport)
