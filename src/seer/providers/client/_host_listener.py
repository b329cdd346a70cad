"""Sockets that this host makes inside a folder which a machine shares and may write to."""

import asyncio
import errno
import os
import socket
import stat

from seer.errors import PathEscapeError, RemoteFileError
from seer.isolation import open_beneath
from seer.providers.client._channel import StreamChannel
from seer.providers.client._parts import Channel, Listener
from seer.providers.client._wire_io import READ_LIMIT, Lost


class HostListener(Listener):
    """Listens in a shared folder; what programs in the machine connect arrives here directly."""

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
            # Bound through the folder's descriptor, so the folder cannot be swapped, and an
            # existing name (a planted link too) is refused by the kernel.
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
                raise OSError(errno.EEXIST, "was replaced while it was being made")
            # The very file that was looked at, whatever its name leads to by now.
            os.chown(f"/proc/self/fd/{fd}", uid, uid)
        finally:
            os.close(fd)

    async def __anext__(self) -> Channel:
        """The next connection."""
        if self._closed.is_set():
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        accepting = asyncio.create_task(loop.sock_accept(self._socket))
        waits = [asyncio.create_task(event.wait()) for event in (self._closed, self._ended)]
        try:
            await asyncio.wait([accepting, *waits], return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                connection, _ = accepting.result()
                reader, writer = await asyncio.open_unix_connection(
                    sock=connection, limit=READ_LIMIT
                )
                return StreamChannel(reader, writer, self._lost)
            if self._closed.is_set():
                raise StopAsyncIteration
            raise await self._lost()
        finally:
            for task in (accepting, *waits):
                task.cancel()
            await asyncio.gather(accepting, *waits, return_exceptions=True)

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._closed.is_set():
            return
        self._closed.set()
        # Those who wait in `__anext__` let go of the socket first.
        await asyncio.sleep(0)
        self._socket.close()
        try:
            os.unlink(self._name, dir_fd=self._folder)
        except FileNotFoundError:
            pass  # the machine, or an agent in it, was faster
        finally:
            os.close(self._folder)
