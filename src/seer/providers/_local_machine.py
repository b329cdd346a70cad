"""A machine on this host, held through its keeper and used through its steward."""

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from seer.errors import IsolationError, PathEscapeError, RemoteFileError, SandboxLostError
from seer.isolation import connect_beneath
from seer.providers._base import Channel, Listener
from seer.providers._channel import StreamChannel
from seer.providers._host_listener import HostListener
from seer.providers._keeper_client import KeeperClient
from seer.providers._local_record import LocalRecord, Seen, how_it_ended
from seer.providers._stewarded import StewardMachine
from seer.providers._wire_io import READ_LIMIT, Connection

_LAST_WORDS = 3.0
"""Seconds to wait for the keeper's word when a connection to the steward ended."""
_END_PATIENCE = 60.0


class LocalMachine(StewardMachine):
    """A machine on this host."""

    provider = "local"

    def __init__(self, folder: Path, record: LocalRecord, keeper: KeeperClient) -> None:
        self.id = record.id
        self.layout = record.layout
        self.note = record.note
        self.detached = False
        self.isolation = record.isolation
        """The backend that jails it."""
        self._record = record
        self._keeper = keeper
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open = 0
        self._last_use = self._last_renewal = time.monotonic()
        self._renewing = asyncio.create_task(self._renew())

    # --- lifetime -----------------------------------------------------------------------------

    async def _renew(self) -> None:
        period = min(self._record.lease, self._record.idle_timeout or self._record.lease) / 3
        with contextlib.suppress(SandboxLostError):
            while not self._keeper.ended.is_set():
                await self._renew_once()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(period):
                        await self._keeper.ended.wait()
        os.close(self._folder)

    async def _renew_once(self) -> None:
        now = self._last_renewal = time.monotonic()
        idle = 0.0 if self._open else now - self._last_use
        await self._keeper.request("renew", {"idle_ms": int(idle * 1000)})

    async def detach(self) -> None:
        """Give the machine a lifetime of its own: it outlives this controller."""
        try:
            await self._keeper.request("detach")
        except SandboxLostError:
            raise await self._why_lost() from None
        self.detached = True

    async def terminate(self) -> None:
        """End the machine and everything in it."""
        await self._keeper.tell("terminate")
        try:
            async with asyncio.timeout(_END_PATIENCE):
                await self._keeper.ended.wait()
        except TimeoutError:
            raise SandboxLostError(
                f"sandbox {self.id!r} did not end within {_END_PATIENCE:g} s; "
                f"look for processes that cannot be killed (state D)"
            ) from None
        await asyncio.gather(self._renewing, return_exceptions=True)

    async def _why_lost(self) -> SandboxLostError:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await self._keeper.ended.wait()
        if not self._keeper.ended.is_set():
            return SandboxLostError(
                "what served this operation inside the sandbox was killed; the sandbox itself "
                "still runs"
            )
        reason = self._keeper.reason
        if reason is None:
            known = await asyncio.to_thread(how_it_ended, self.id)
            reason = known[0] if known is not None else "its keeper was killed"
        return SandboxLostError(f"the sandbox was ended: {reason}")

    async def _suspect(self) -> None:
        """Look whether the machine is past a limit."""
        try:
            await self._keeper.request("look")
        except SandboxLostError:
            raise await self._why_lost() from None

    # --- the steward --------------------------------------------------------------------------

    async def _dial(self) -> Connection:
        if self._keeper.ended.is_set():
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
        protocol = _Counted(reader, self._closed)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: protocol, sock=sock)
        self._open += 1
        if self._record.idle_timeout and time.monotonic() - self._last_renewal > 0.1:
            # An idle machine is about to be used; the keeper must hear of it before it gives up.
            await self._renew_once()
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

    def _closed(self) -> None:
        self._open -= 1
        self._last_use = time.monotonic()

    # --- paths and sockets --------------------------------------------------------------------

    def path(self, target: str) -> str:
        """Where programs in the machine see what the spec mounted at `target`."""
        for mount in self._record.mounts:
            if target == mount.target or target.startswith(mount.target + "/"):
                return mount.seen + target[len(mount.target) :]
        return target

    def socket_path(self, path: str) -> Path | None:
        """The host path of a path of the machine; None where it lies in no mount."""
        found = self._locate(path)
        return Path(found[0].source, found[1]) if found is not None else None

    def _locate(self, path: str) -> tuple[Seen, str] | None:
        """The mount that a path of the machine lies in, and where in it."""
        whole = os.path.normpath(os.path.join(self.layout.workdir, path))  # noqa: PTH118
        for mount in self._record.mounts:
            if whole == mount.seen or whole.startswith(mount.seen + "/"):
                return mount, whole[len(mount.seen) + 1 :]
        return None

    async def connect(self, address: str | int) -> Channel:
        """Open a connection to a Unix socket (path) or a loopback TCP port in the machine."""
        if isinstance(address, int):
            return await super().connect(address)
        found = self._locate(address)
        if found is None or not found[0].writable:
            return await super().connect(address)
        mount, relative = found
        try:
            # In a thread: a listener that accepts nothing makes a connect wait.
            sock = await asyncio.to_thread(connect_beneath, mount.source, relative)
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


class _Counted(asyncio.StreamReaderProtocol):
    """Tells when a connection is over, so that idleness can be told."""

    def __init__(self, reader: asyncio.StreamReader, on_end: Callable[[], None]) -> None:
        super().__init__(reader)
        self._on_end = on_end

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        super().connection_lost(exc)
        self._on_end()
