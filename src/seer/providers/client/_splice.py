"""Join two byte streams on the loop, without a task and a buffer in between.

What arrives on one is written to the other in the same turn of the loop; when that one is slow, the
first is not read. A small call through a relay is mostly such turns, so each one counts.
"""

import asyncio
from typing import cast


class _Joined(asyncio.Protocol):
    """Hears one transport, and passes on to the other."""

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
        """Pass the end on; the other direction may go on."""
        self.ended = True
        if self._target.can_write_eof() and not self._target.is_closing():
            self._target.write_eof()
        if self.peer is not None and self.peer.ended:
            self._over.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Both have ended."""
        # Whoever counts connections, or waits for this one to close, still hears of it.
        self._former.connection_lost(exc)
        self._over.set()

    def pause_writing(self) -> None:
        """This transport is slow to take what the other one brings."""
        if self.source is not None and not self.source.is_closing():
            self.source.pause_reading()

    def resume_writing(self) -> None:
        """It is not any more."""
        if self.source is not None and not self.source.is_closing():
            self.source.resume_reading()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def splice(one: Streams, other: Streams) -> None:
    """Pass bytes both ways until both have ended, or one is lost; then the caller closes both."""
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
        # What had come before belongs to the other side too.
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
