"""A socket of this host that leads to one in a machine elsewhere.

Whoever may connect to the file is one caller, as with a gate's own socket; the way to the machine,
with all its credentials, is the controller's. Each connection is passed on by itself. One that
breaks is closed here, and the caller, who has its calls' ids, may come again.
"""

import asyncio
import contextlib
import logging
import socket

from seer._addresses import address
from seer._transient import TransientFolder
from seer.errors import RemoteFileError, SandboxLostError
from seer.providers._base import Machine
from seer.providers.client._channel import StreamChannel
from seer.providers.client._parts import Channel, Way
from seer.providers.client._splice import splice
from seer.providers.client._wire_io import READ_LIMIT

logger = logging.getLogger(__name__)

_CHUNK = 256 * 1024
_SOCKET = "gate.sock"


class Relay(Way):
    """Passes connections on until it is closed."""

    relayed = True

    def __init__(
        self, machine: Machine, target: str, listener: socket.socket, folder: TransientFolder
    ) -> None:
        super().__init__(folder.path / _SOCKET)
        self._machine = machine
        self._target = target
        self._listener = listener
        self._passing: set[asyncio.Task[None]] = set()
        self._folder = folder
        self._accepting = asyncio.create_task(self._accept())

    @classmethod
    async def open(cls, machine: Machine, target: str) -> "Relay":
        """Listen in a fresh folder for connections to `target` in the machine."""
        # Short: tools such as curl take no path of more than 107 bytes.
        folder = TransientFolder("gate")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        try:
            path = folder.path / _SOCKET
            with address(path) as where:
                listener.bind(where)
            # The folder is closed to others; a jail sees the socket and nothing else of it.
            path.chmod(0o666)
            listener.listen(512)
        except BaseException:
            listener.close()
            folder.remove()
            raise
        return cls(machine, target, listener, folder)

    async def close(self) -> None:
        """Stop listening, and break every connection."""
        tasks = [self._accepting, *self._passing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        self._folder.remove()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            task = asyncio.create_task(self._pass(connection))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def _pass(self, near: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=near, limit=READ_LIMIT)
        channel = StreamChannel(reader, writer, _hung_up)
        try:
            far = await self._machine.connect(self._target)
        except (SandboxLostError, RemoteFileError) as error:
            logger.info("a connection to %s was not passed on: %s", self._target, error)
            await channel.close()
            return
        except BaseException:
            await asyncio.shield(channel.close())
            raise
        await relay(channel, far)


async def relay(one: Channel, other: Channel) -> None:
    """Pass bytes both ways until they end; then both are closed."""
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


async def _hung_up() -> SandboxLostError:
    return SandboxLostError("the other side has hung up")
