"""A machine on this host, held through its keeper and used through its steward."""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from seer._sockets import accept_waiting, connect_in_thread, readable
from seer.errors import IsolationError, PathEscapeError, RemoteFileError
from seer.isolation import connect_beneath, open_beneath
from seer.providers.client._channel import StreamChannel
from seer.providers.client._connection import READ_LIMIT, Lost
from seer.providers.client._interfaces import Channel, Listener
from seer.providers.client._keeper import KeeperClient
from seer.providers.client._machine import (
    CountedProtocol,
    Route,
    Streams,
    SupervisedMachine,
)
from seer.providers.local._record import LocalRecord, MountRecord, how_it_ended


class LocalRoute(Route):
    """Reaches a steward through the folder of its machine."""

    def __init__(self, machine_id: str, folder: Path) -> None:
        self._id = machine_id
        self.folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    async def open_steward(self, on_closed: Callable[[], None]) -> Streams:
        """Connect to the steward's socket."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await self._connect(sock)
            return await open_streams(sock, on_closed)
        except BaseException:
            sock.close()
            raise

    async def _connect(self, sock: socket.socket) -> None:
        pause = 0.001
        while True:
            try:
                # Use the folder's descriptor, because an address may have at most 107 bytes.
                sock.connect(f"/proc/self/fd/{self.folder}/steward.sock")
                return
            except BlockingIOError:
                # The steward's queue is full, because many operations start at once.
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.1)

    async def why_ended(self) -> str | None:
        """How the machine ended, from this host's record."""
        known = await asyncio.to_thread(how_it_ended, self._id)
        return known[0] if known is not None else None

    async def close(self) -> None:
        """Close the folder."""
        # Another folder may get this descriptor number, and a waiting operation must not connect
        # there.
        folder, self.folder = self.folder, -1
        os.close(folder)


async def open_streams(sock: socket.socket, on_closed: Callable[[], None]) -> Streams:
    """Streams over a connected socket; `on_closed` is called once they have ended."""
    reader = asyncio.StreamReader(limit=READ_LIMIT)
    protocol = CountedProtocol(reader, on_closed)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(lambda: protocol, sock=sock)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class LocalMachine(SupervisedMachine):
    """A machine on this host."""

    provider = "local"

    def __init__(self, folder: Path, record: LocalRecord, keeper: KeeperClient) -> None:
        route = LocalRoute(record.id, folder)
        super().__init__(record, keeper, route, machine_id=record.id)

    def socket_path(self, path: str) -> Path | None:
        """The host path of a path in the machine; None if no mount contains it."""
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
        await self._lease.check_usable()
        try:
            sock = await connect_in_thread(partial(connect_beneath, mount.source, relative))
        except (PathEscapeError, OSError) as error:
            number = error.errno or errno.EACCES
            raise RemoteFileError(number, error.strerror or str(error), address) from None
        sock.setblocking(False)
        reader, writer = await open_streams(sock, self._lease.connection_closed)
        await self._count(writer)
        return StreamChannel(reader, writer, self._lease.why_lost)

    def listen(self, path: str) -> Listener:
        """Accept connections that programs in the machine make to the Unix socket `path`."""
        if self.isolation == "landlock":
            raise IsolationError(
                f"listen({path!r}): programs in a landlock jail may not connect to sockets; name "
                f"the socket in the spec's gates, or use isolation='bubblewrap'"
            )
        found = self._locate(path)
        if found is None or not found[0].writable:
            text = "the path is not in a folder that this machine shares with its host"
            raise RemoteFileError(errno.EACCES, text, path)
        mount, relative = found
        return HostListener(
            mount.source,
            relative,
            uid=self._record.uid,
            ended=self._lease.ended,
            lost=self._lease.why_lost,
        )

    def _locate(self, path: str) -> tuple[MountRecord, str] | None:
        """The mount that contains a path of the machine, and the rest of the path."""
        whole = os.path.normpath(os.path.join(self.layout.workdir, path))  # noqa: PTH118
        for mount in self._record.mounts:
            if whole == mount.seen or whole.startswith(mount.seen + "/"):
                return mount, whole[len(mount.seen) + 1 :]
        return None


class HostListener(Listener):
    """Listens in a folder that the machine shares with this host."""

    def __init__(
        self, root: str, relative: str, *, uid: int | None, ended: asyncio.Event, lost: Lost
    ) -> None:
        self._lost = lost
        self._ended = ended
        self._closed = asyncio.Event()
        folder, _, self._name = relative.rpartition("/")
        try:
            self._folder = open_beneath(root, folder or ".", os.O_RDONLY | os.O_DIRECTORY, 0)
        except (PathEscapeError, OSError) as error:
            number = error.errno or errno.EACCES
            raise RemoteFileError(number, error.strerror or str(error), relative) from None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # Bind through the folder's descriptor, so that the folder cannot be swapped. The kernel
            # refuses an existing name, including a planted link.
            self._socket.bind(f"/proc/self/fd/{self._folder}/{self._name}")
            if uid is not None:
                self._give_to(uid)
            self._socket.listen(512)
        except OSError as error:
            self._socket.close()
            os.close(self._folder)
            raise RemoteFileError(error.errno or 0, error.strerror or "", relative) from None

    def _give_to(self, uid: int) -> None:
        fd = os.open(self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise OSError(errno.EEXIST, "was replaced while it was being created")
            # Change the checked file, even if another file has its name by now.
            os.chown(f"/proc/self/fd/{fd}", uid, uid)
        finally:
            os.close(fd)

    async def __anext__(self) -> Channel:
        """The next connection."""
        while True:
            conditions = (readable(self._socket), self._closed.wait(), self._ended.wait())
            waits = [asyncio.ensure_future(condition) for condition in conditions]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waits:
                    task.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
            if self._closed.is_set():
                raise StopAsyncIteration
            if waits[0].cancelled():
                raise await self._lost()
            connection = accept_waiting(self._socket)
            if connection is not None:
                streams = await asyncio.open_unix_connection(sock=connection, limit=READ_LIMIT)
                return StreamChannel(*streams, self._lost)

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._closed.is_set():
            return
        self._closed.set()
        # Let tasks that wait in `__anext__` release the socket first.
        await asyncio.sleep(0)
        self._socket.close()
        try:
            os.unlink(self._name, dir_fd=self._folder)
        except FileNotFoundError:
            pass  # the machine, or an agent in it, has removed it
        finally:
            os.close(self._folder)
