"""A machine with a keeper and a steward, on this host or a remote host.

The machine's lease goes through its keeper; commands go through its steward. Only the `Route` to
the steward differs between hosts.
"""

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seer.errors import SandboxLostError
from seer.isolation._mounts import in_view
from seer.providers._base import Machine
from seer.providers._spec import FileStatus, TerminalSize
from seer.providers.client._connection import Connection
from seer.providers.client._interfaces import Channel, HostSocket, Listener, Process
from seer.providers.client._keeper import KeeperClient
from seer.providers.client._lease import Lease
from seer.providers.client._steward import StewardClient
from seer.providers.local._record import LocalRecord

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Route(ABC):
    """How this controller reaches the processes of one machine."""

    @abstractmethod
    async def open_steward(self, on_closed: Callable[[], None]) -> Streams:
        """Open a connection to the steward; `on_closed` is called once it has ended.

        Raises:
            OSError: The steward cannot be reached.
        """

    @abstractmethod
    async def why_ended(self) -> str | None:
        """How the machine ended, from its host's records; None if they do not have it."""

    def explain(self, error: SandboxLostError) -> SandboxLostError:
        """The error for a lost machine, with this route's details about its host."""
        return error

    @abstractmethod
    async def close(self) -> None:
        """Close the route to a machine that has ended."""


class SupervisedMachine(Machine):
    """A machine that is held through its keeper and used through its steward."""

    def __init__(
        self,
        record: LocalRecord,
        keeper: KeeperClient,
        route: Route,
        *,
        machine_id: str,
    ) -> None:
        self.id = machine_id
        self.layout = record.layout
        self.note = record.note
        self.isolation = record.isolation
        """The backend that jails it."""
        self.users = bool(record.policy.get("users"))
        self._record = record
        self._route = route
        self._lease = Lease(
            keeper,
            machine_id=machine_id,
            seconds=record.lease,
            idle_timeout=record.idle_timeout,
            why_ended=route.why_ended,
            explain=route.explain,
            on_end=self._release,
        )
        self.steward = StewardClient(
            self._dial,
            lost=self._lease.why_lost,
            check_limits=self._lease.check_limits,
            users=self.users,
        )
        self._host_sockets: weakref.WeakSet[HostSocket] = weakref.WeakSet()

    async def _dial(self) -> Connection:
        await self._lease.check_usable()
        if self._lease.stopped:
            raise await self._lease.why_lost()
        try:
            reader, writer = await self._route.open_steward(self._lease.connection_closed)
        except OSError:
            raise await self._lease.why_lost() from None
        await self._count(writer)
        return Connection(reader, writer, self._lease.why_lost)

    async def _count(self, writer: asyncio.StreamWriter) -> None:
        """Count an open connection. The route counts its end."""
        try:
            await self._lease.connection_opened()
        except SandboxLostError:
            writer.close()
            raise await self._lease.why_lost() from None
        except BaseException:
            writer.close()
            raise

    async def _release(self) -> None:
        for host_socket in list(self._host_sockets):
            await host_socket.close()
        await self._route.close()

    # --- lifetime -----------------------------------------------------------------------------

    @property
    def detached(self) -> bool:
        """Whether it outlives this controller."""
        return self._lease.detached

    @property
    def was_detached(self) -> bool:
        """Whether it was detached when this controller found it."""
        return self._lease.was_detached

    @property
    def paused(self) -> bool:
        """Whether it is paused, as far as this controller knows."""
        return self._lease.paused

    async def pause(self) -> None:
        """Stop everything in the machine, and keep its memory."""
        await self._lease.pause()

    async def resume(self) -> None:
        """Continue a paused machine."""
        await self._lease.resume()

    async def detach(self) -> None:
        """Let the machine outlive this controller."""
        await self._lease.detach()

    async def terminate(self) -> None:
        """End the machine and everything in it."""
        await self._lease.terminate()

    async def let_go(self) -> None:
        """Leave the machine as it was before this controller adopted it."""
        await self._lease.let_go()

    async def ended(self) -> str | None:
        """Wait for its end. Returns the reason; None if this controller let it go."""
        await self._lease.ended.wait()
        return None if self._lease.was_let_go else await self._lease.reason()

    # --- commands, files, sockets -------------------------------------------------------------

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        pty: TerminalSize | None = None,
        user: str | None = None,
    ) -> Process:
        """Start a command without a shell, in its own session."""
        return await self.steward.spawn(argv, env=env, cwd=cwd, stdin=stdin, pty=pty, user=user)

    async def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file; relative paths start at the layout's `workdir`."""
        return await self.steward.read_file(path, offset=offset, length=length)

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False
    ) -> None:
        """Write a file atomically (or append to it), and create its parent folders."""
        await self.steward.write_file(path, data, mode=mode, append=append)

    async def stat(self, path: str, *, follow: bool = True) -> FileStatus:
        """Describe a file."""
        return await self.steward.stat(path, follow=follow)

    async def list_dir(self, path: str) -> list[FileStatus]:
        """Describe everything in a folder."""
        return await self.steward.list_dir(path)

    async def make_dir(self, path: str, *, mode: int = 0o755) -> None:
        """Make a folder and its parents."""
        await self.steward.make_dir(path, mode=mode)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a folder."""
        await self.steward.remove(path, recursive=recursive)

    async def connect(self, address: str | int) -> Channel:
        """Open a connection to a Unix socket (path) or a loopback TCP port in the machine."""
        return await self.steward.connect(address)

    def listen(self, path: str) -> Listener:
        """Accept connections that programs in the machine make to the Unix socket `path`."""
        return self.steward.listen(path)

    async def reach(self, path: str) -> HostSocket:
        """Make a Unix socket of the machine available as a file on this host."""
        host_socket = await super().reach(path)
        self._host_sockets.add(host_socket)
        return host_socket

    # --- what it is ---------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """See `Machine.about`."""
        record = self._record
        return {
            **super().about(),
            "gpu": record.gpu,
            "isolation": record.isolation,
            "user": record.uid,
            **record.policy,
            "mounts": [{"at": item.seen, "writable": item.writable} for item in record.mounts],
        }

    def path(self, target: str) -> str:
        """The path at which programs in the machine see the mount at `target`."""
        return in_view({mount.target: mount.seen for mount in self._record.mounts}, target)


class CountedProtocol(asyncio.StreamReaderProtocol):
    """Calls a function when its connection has ended."""

    def __init__(self, reader: asyncio.StreamReader, on_closed: Callable[[], None]) -> None:
        super().__init__(reader)
        self._on_closed = on_closed

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end."""
        super().connection_lost(exc)
        self._on_closed()
