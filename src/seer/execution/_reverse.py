"""A door in a machine that leads back to a socket of this host.

A session in a sandbox reaches an interface that is served elsewhere only through it: programs in
the machine connect to a Unix socket there, and the controller passes the bytes on. The socket of
this host is one caller's own, so whoever comes through the door is that caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from seer.errors import SandboxLostError
from seer.execution._dial import SocketChannel, connect_path
from seer.providers import Channel, Listener, Machine
from seer.providers.client._relay import relay

logger = logging.getLogger(__name__)

_MOST = 64
"""Connections at once; more wait."""


class ReverseDoor:
    """Passes connections from a machine to a socket of this host until it is closed."""

    def __init__(self, listener: Listener, target: Path) -> None:
        self._listener = listener
        self._target = target
        self._warned = False
        self._relays: dict[asyncio.Task[None], Channel] = {}
        self._accepting = asyncio.create_task(self._accept())

    @classmethod
    async def open(cls, machine: Machine, path: str, target: Path) -> ReverseDoor:
        """Listen on `path` in the machine for connections to `target` on this host.

        Raises:
            RemoteFileError: The socket cannot be made there.
        """
        return cls(await machine.listen(path).__aenter__(), target)

    async def close(self) -> None:
        """Close the door and every connection through it."""
        relays = dict(self._relays)
        for task in (*relays, self._accepting):
            task.cancel()
        await asyncio.gather(*relays, self._accepting, return_exceptions=True)
        for channel in relays.values():
            await channel.close()  # also of a relay that was cancelled before it had begun
        with contextlib.suppress(SandboxLostError):
            await self._listener.close()

    async def _accept(self) -> None:
        room = asyncio.Semaphore(_MOST)
        try:
            async for channel in self._listener:
                await room.acquire()
                task = asyncio.create_task(self._serve(channel))
                self._relays[task] = channel
                task.add_done_callback(lambda task: self._relays.pop(task, None))
                task.add_done_callback(lambda _: room.release())
        except SandboxLostError as error:
            logger.debug("a door is gone with its machine: %s", error)

    async def _serve(self, channel: Channel) -> None:
        try:
            near = SocketChannel(await asyncio.to_thread(connect_path, self._target))
        except OSError as error:
            # Once: a program in the machine can connect as often as it likes.
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            logger.log(level, "nothing listens on the gate's socket any more: %s", error)
            await channel.close()
            return
        await relay(channel, near)
