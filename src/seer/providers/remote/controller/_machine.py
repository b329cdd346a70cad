"""A machine on a remote host. A session's streams lead to its keeper and steward."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seer.errors import SandboxLostError, SeerError
from seer.providers.client._keeper import KeeperClient
from seer.providers.client._machine import (
    CountedProtocol,
    Route,
    Streams,
    SupervisedMachine,
)
from seer.providers.local._record import LocalRecord
from seer.providers.remote.controller._session import RemoteSession

if TYPE_CHECKING:
    from seer.providers.remote.controller._host import RemoteHost

_ASK_PATIENCE = 15.0
_BRIEF = 2.0
_PAUSES = (0.2, 0.5, 1.0)


class RemoteRoute(Route):
    """Reaches a steward over the streams of a session with its host."""

    def __init__(self, host: "RemoteHost", session: RemoteSession, machine_id: str) -> None:
        self._host = host
        self._session = session
        self._id = machine_id

    async def open_steward(self, on_closed: Callable[[], None]) -> Streams:
        """Open a stream to the steward."""
        return await self._session.open(
            "steward", lambda reader: CountedProtocol(reader, on_closed)
        )

    def explain(self, error: SandboxLostError) -> SandboxLostError:
        """The error, with the host's details about the loss."""
        return self._host.explain_loss(error)

    async def why_ended(self) -> str | None:
        """How the machine ended, from its host."""
        for pause in _PAUSES:
            with contextlib.suppress(SeerError, TimeoutError):
                async with asyncio.timeout(_BRIEF if self._session.unreachable else _ASK_PATIENCE):
                    reason = await self._host.how_it_ended(self._id)
                    if reason is not None:
                        return reason
            if self._session.unreachable:
                break
            await asyncio.sleep(pause)
        return None if self._session.failure is None else str(self._session.failure)

    async def close(self) -> None:
        """End the session."""
        await self._session.close()


class RemoteMachine(SupervisedMachine):
    """A machine on a remote host."""

    def __init__(
        self,
        host: "RemoteHost",
        record: LocalRecord,
        keeper: KeeperClient,
        session: RemoteSession,
    ) -> None:
        self._host = host
        self._session = session
        self.provider = host.provider
        route = RemoteRoute(host, session, record.id)
        super().__init__(record, keeper, route, machine_id=f"{record.id}@{host.place}")

    @classmethod
    async def attach(
        cls,
        host: "RemoteHost",
        record: LocalRecord,
        session_socket: str,
        *,
        hold: bool,
        gates: Mapping[str, Path] | None = None,
    ) -> "RemoteMachine":
        """Connect to a machine through its session server.

        Args:
            host: The machine's host.
            record: The machine's record.
            session_socket: The session server's socket.
            hold: Whether to take over the machine. A new machine is already held.
            gates: Sockets of this host that programs in the machine can reach, by name.

        Raises:
            HostUnreachableError: The connection broke.
            SandboxLostError: The machine has ended.
        """
        session = RemoteSession(host.link, session_socket, lease=record.lease, gates=gates or {})
        await session.start()
        keeper: KeeperClient | None = None
        try:
            keeper = KeeperClient(*await session.open("keeper", asyncio.StreamReaderProtocol))
            if hold:
                await keeper.hold()
        except BaseException:
            if keeper is not None:
                await asyncio.shield(keeper.let_go())
            await asyncio.shield(session.close())
            raise
        return cls(host, record, keeper, session)

    @property
    def cuts(self) -> int:
        """How often the connection broke and was replaced."""
        return self._session.cuts

    def about(self) -> dict[str, Any]:
        """See `Machine.about`. Also has the host and the price in US dollars per second."""
        return {**super().about(), "host": self._host.name, "price": self._host.price}

    async def detach(self) -> None:
        """Let the machine outlive this controller, if its host allows it."""
        self._host.check_can_detach()
        await super().detach()

    async def pause(self) -> None:
        """Stop every process in the machine and keep its memory, if its host supports that."""
        self._host.check_can_pause()
        await super().pause()

    async def terminate(self) -> None:
        """End the machine and everything in it."""
        try:
            await super().terminate()
        except SandboxLostError as error:
            if self._session.connected:
                raise
            raise SandboxLostError(
                f"sandbox {self.id!r}: {self._host.name} cannot be reached; the sandbox ends "
                f"itself when its lease of {self._record.lease:g} s has expired"
            ) from error
        await self._host.machine_ended()
