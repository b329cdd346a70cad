"""The controller's connection to a machine's keeper: requests, and why the machine ended."""

import asyncio
import contextlib
import socket
from collections import deque

from seer.errors import SandboxLostError
from seer.providers.agent import wire
from seer.providers.client._connection import Connection

_PATIENCE = 30.0


class KeeperClient:
    """One connection to a keeper. It ends with the machine, or with this object."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connection = Connection(reader, writer, _gone)
        self._waiting: deque[asyncio.Future[wire.Message]] = deque()
        self.ended = asyncio.Event()
        """Set once the keeper is gone."""
        self.stopped = asyncio.Event()
        """Set once the machine's processes have ended; the keeper may still remove its files."""
        self.reason: str | None = None
        """How the machine ended, if the keeper said so."""
        self.was_detached = self.was_paused = False
        """The machine's state when `hold` took it over."""
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def on(cls, sock: socket.socket) -> "KeeperClient":
        """Use a connected socket."""
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock))

    async def hold(self) -> None:
        """Take over a running machine; raises as `request` does.

        If this fails or is cancelled, `let_go` undoes it.
        """
        before = await self.request("status")
        self.was_detached = bool(wire.get_int(before, "detached"))
        held = await self.request("hold")
        self.was_paused = bool(wire.get_int(held, "paused", 0))

    async def let_go(self) -> None:
        """Undo `hold`: detach the machine again if it was detached, and close the connection."""
        if self.was_detached:
            with contextlib.suppress(SandboxLostError):
                await self.request("detach")
        await self.close()

    async def request(
        self, op: str, fields: "dict[str, wire.Encodable] | None" = None
    ) -> "wire.Message":
        """Send the keeper a request and wait for its answer.

        Raises:
            SandboxLostError: The keeper is gone, or does not answer.
        """
        if self.stopped.is_set():
            raise await _gone()
        future: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._connection.request(op, fields or {})
                return await future
        except TimeoutError:
            raise SandboxLostError("the sandbox's keeper does not answer") from None
        finally:
            # A cancelled future stays in the queue, because its answer may still come.
            future.cancel()

    async def tell(self, op: str) -> None:
        """Send a request whose only answer is the machine's end. Harmless if the keeper is gone."""
        with contextlib.suppress(SandboxLostError):
            await self._connection.request(op, {})

    async def _read(self) -> None:
        try:
            while True:
                kind, payload = await self._connection.receive()
                fields = wire.decode_message(payload)
                if kind == wire.ENDED:
                    self.reason = wire.get_text(fields, "reason")
                    await self._stop()
                elif self._waiting:
                    future = self._waiting.popleft()
                    if not future.done():
                        future.set_result(fields)
        except (SandboxLostError, wire.WireError):
            pass  # the connection has ended; `finally` reports it
        finally:
            self._connection.close()
            self.ended.set()
            await self._stop()

    async def _stop(self) -> None:
        """Fail the waiting requests, because the keeper is gone."""
        self.stopped.set()
        for future in self._waiting:
            if not future.done():
                future.set_exception(await _gone())

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


async def _gone() -> SandboxLostError:
    return SandboxLostError("the sandbox's keeper is gone")
