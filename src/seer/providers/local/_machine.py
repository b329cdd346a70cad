"""A machine on this host, held through its keeper and used through its steward."""

import asyncio
import errno
import os
import socket
from pathlib import Path

from seer.errors import IsolationError, PathEscapeError, RemoteFileError
from seer.isolation import connect_beneath
from seer.providers.client._channel import StreamChannel
from seer.providers.client._host_listener import HostListener
from seer.providers.client._keeper import KeeperClient
from seer.providers.client._kept import CountedProtocol, KeptMachine
from seer.providers.client._parts import Channel, Listener
from seer.providers.client._wire_io import READ_LIMIT, Connection
from seer.providers.local._record import LocalRecord, how_it_ended


class LocalMachine(KeptMachine):
    """A machine on this host."""

    provider = "local"

    def __init__(self, folder: Path, record: LocalRecord, keeper: KeeperClient) -> None:
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        super().__init__(record, keeper)

    async def _released(self) -> None:
        # An operation that waits to connect must not find another machine's folder by this number.
        folder, self._folder = self._folder, -1
        os.close(folder)

    async def _ended_because(self) -> str | None:
        known = await asyncio.to_thread(how_it_ended, self.id)
        return known[0] if known is not None else None

    # --- the steward --------------------------------------------------------------------------

    async def _dial(self) -> Connection:
        await self._check_running()
        if self._keeper.stopped.is_set():
            raise await self._why_lost()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await self._reach_steward(sock)
            reader, writer = await self._streams(sock)
        except OSError:
            sock.close()
            raise await self._why_lost() from None
        except BaseException:
            sock.close()
            raise
        return Connection(reader, writer, self._why_lost)

    async def _streams(
        self, sock: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Streams over a connected socket; while they are open, the machine is in use."""
        reader = asyncio.StreamReader(limit=READ_LIMIT)
        protocol = CountedProtocol(reader, self._closed)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: protocol, sock=sock)
        await self._used()
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _reach_steward(self, sock: socket.socket) -> None:
        pause = 0.001
        while True:
            try:
                # Through the folder's descriptor: an address has at most 107 bytes.
                sock.connect(f"/proc/self/fd/{self._folder}/steward.sock")
                return
            except BlockingIOError:
                # The steward's queue is full: many operations start at once.
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.1)

    # --- paths and sockets --------------------------------------------------------------------

    def socket_path(self, path: str) -> Path | None:
        """The host path of a path of the machine; None where it lies in no mount."""
        found = self._locate(path)
        return Path(found[0].source, found[1]) if found is not None else None

    async def connect(self, address: str | int) -> Channel:
        """Open a connection to a Unix socket (path) or a loopback TCP port in the machine."""
        if isinstance(address, int):
            return await super().connect(address)
        found = self._locate(address)
        if found is None or not found[0].writable:
            return await super().connect(address)
        mount, relative = found
        await self._check_running()
        # In a thread: a listener that accepts nothing makes a connect wait.
        connecting = asyncio.create_task(asyncio.to_thread(connect_beneath, mount.source, relative))
        try:
            sock = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            # The thread goes on, and nobody waits for what it brings.
            connecting.add_done_callback(_close_result)
            raise
        except (PathEscapeError, OSError) as error:
            number = error.errno or errno.EACCES
            raise RemoteFileError(number, error.strerror or str(error), address) from None
        sock.setblocking(False)
        return StreamChannel(*await self._streams(sock), self._why_lost)

    def listen(self, path: str) -> Listener:
        """Accept connections that programs in the machine make to the Unix socket `path`."""
        if self.isolation == "landlock":
            raise IsolationError(
                f"listen({path!r}): programs in a landlock jail may not connect to sockets; name "
                f"the socket in the spec's gates, or use isolation='bubblewrap'"
            )
        found = self._locate(path)
        if found is None or not found[0].writable:
            text = "not in a folder that this machine shares with its host"
            raise RemoteFileError(errno.EACCES, text, path)
        mount, relative = found
        return HostListener(
            mount.source,
            relative,
            uid=self._record.uid,
            ended=self._keeper.ended,
            lost=self._why_lost,
        )


def _close_result(connecting: asyncio.Task[socket.socket]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
