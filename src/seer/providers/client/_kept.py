"""A machine that has a keeper: its lease, its end, and the reasons for it.

What differs between such machines is the way to their keeper and steward.
"""

import asyncio
import contextlib
import logging
import os
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from seer.errors import ProviderError, SandboxLostError, SandboxPausedError, SandboxStateError
from seer.providers.agent import wire
from seer.providers.client._keeper import KeeperClient
from seer.providers.client._parts import Way
from seer.providers.client._stewarded import StewardMachine
from seer.providers.local._record import LocalRecord, Seen

logger = logging.getLogger(__name__)

_LOOK_AGAIN = 0.05
_LAST_WORDS = 3.0
"""Seconds to wait for the keeper's word when a connection to the steward ended."""
_END_PATIENCE = 60.0


class KeptMachine(StewardMachine):
    """A machine held through its keeper."""

    def __init__(self, record: LocalRecord, keeper: KeeperClient) -> None:
        self.id = record.id
        self.layout = record.layout
        self.note = record.note
        self.detached = False
        self.isolation = record.isolation
        """The backend that jails it."""
        self.users = bool(record.policy.get("users"))
        self._record = record
        self._process = os.getpid()
        self._keeper = keeper
        self._open = 0
        self._last_use = self._last_renewal = time.monotonic()
        self._ways: weakref.WeakSet[Way] = weakref.WeakSet()
        self._renewing = asyncio.create_task(self._renew())

    @abstractmethod
    async def _ended_because(self) -> str | None:
        """How the machine ended, from wherever that is written down; None if it is not."""

    async def _released(self) -> None:
        """Let go of what led to the machine; it has ended."""

    # --- lifetime -----------------------------------------------------------------------------

    async def _renew(self) -> None:
        period = min(self._record.lease, self._record.idle_timeout or self._record.lease) / 3
        while not self._keeper.ended.is_set():
            # One that is not answered in time may be on its way over a line that is down.
            with contextlib.suppress(SandboxLostError):
                await self._renew_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await self._keeper.ended.wait()
        for way in list(self._ways):
            await way.close()
        await self._released()

    async def _renew_once(self) -> None:
        now = self._last_renewal = time.monotonic()
        idle = 0.0 if self._open else now - self._last_use
        await self._ask("renew", {"idle_ms": int(idle * 1000)})

    async def _ask(
        self, op: str, fields: "dict[str, wire.Encodable] | None" = None
    ) -> "wire.Message":
        """Ask the keeper for something; every answer also tells whether the machine is paused."""
        answer = await self._keeper.request(op, fields)
        self.paused = bool(wire.get_int(answer, "paused", 0))
        return answer

    async def pause(self) -> None:
        """Stop all that runs in the machine and keep its memory."""
        answer = await self._ask_and_wait("pause")
        kept = wire.get_text(answer, "kept", "")
        if kept:
            logger.warning(
                "sandbox %s is paused; its GPU memory stays allocated: %s", self.id, kept
            )

    async def resume(self) -> None:
        """Let a paused machine go on."""
        await self._ask_and_wait("resume")
        self._last_use = time.monotonic()

    async def _ask_and_wait(self, op: str) -> "wire.Message":
        """Pause or resume; the keeper answers at once, and may have GPU memory to move."""
        try:
            answer = await self._ask(op)
            while wire.get_int(answer, "moving", 0):
                await asyncio.sleep(_LOOK_AGAIN)
                answer = await self._ask("status")
        except SandboxLostError:
            raise await self._why_lost() from None
        problem = wire.get_text(answer, "problem", "")
        if problem:
            raise ProviderError(f"sandbox {self.id!r} cannot {op}: {problem}")
        return answer

    async def _check_running(self) -> None:
        """Refuse at once what would never be answered.

        Raises:
            SandboxPausedError: It is paused; asked again, because others may hold it too.
            SandboxStateError: Its connections belong to the process that this one was forked from.
        """
        if self._process != os.getpid():
            raise SandboxStateError(
                f"sandbox {self.id!r} belongs to process {self._process}, of which this process is "
                f"a fork; use from_id({self.id!r}) here, or make a sandbox of its own"
            )
        if self.paused:
            try:
                await self._ask("status")
            except SandboxLostError:
                self.paused = False  # it has ended, which is told in its place
        if self.paused:
            raise SandboxPausedError(f"sandbox {self.id!r} is paused; call resume() first")

    async def detach(self) -> None:
        """Give the machine a lifetime of its own: it outlives this controller."""
        try:
            await self._keeper.request("detach")
        except SandboxLostError:
            raise await self._why_lost() from None
        self.detached = True

    async def terminate(self) -> None:
        """End the machine and everything in it; its files may take as long as they need to go."""
        await self._keeper.tell("terminate")
        try:
            async with asyncio.timeout(_END_PATIENCE):
                await self._keeper.stopped.wait()
        except TimeoutError:
            raise SandboxLostError(
                f"sandbox {self.id!r} did not end within {_END_PATIENCE:g} s; "
                f"look for processes that cannot be killed (state D)"
            ) from None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_PATIENCE):
                await self._keeper.ended.wait()
        if not self._keeper.ended.is_set():
            logger.warning("sandbox %s has ended; its files are still being removed", self.id)
            await self._keeper.ended.wait()
        await asyncio.gather(self._renewing, return_exceptions=True)

    async def ended(self) -> str:
        """Wait for its end; the reason, as far as it is known."""
        await self._keeper.ended.wait()
        return self._keeper.reason or await self._ended_because() or "its keeper was killed"

    async def _why_lost(self) -> SandboxLostError:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await self._keeper.stopped.wait()
        if not self._keeper.stopped.is_set():
            return SandboxLostError(
                "what served this operation inside the sandbox was killed; the sandbox itself "
                "still runs"
            )
        reason = self._keeper.reason
        if reason is None:
            reason = await self._ended_because() or "its keeper was killed"
        return SandboxLostError(f"the sandbox was ended: {reason}")

    async def _suspect(self) -> None:
        """Look whether the machine is past a limit."""
        try:
            await self._keeper.request("look")
        except SandboxLostError:
            raise await self._why_lost() from None

    # --- use ----------------------------------------------------------------------------------

    async def _used(self) -> None:
        """Note that a connection was opened."""
        self._open += 1
        if self._record.idle_timeout and time.monotonic() - self._last_renewal > 0.1:
            # An idle machine is about to be used; the keeper must hear of it before it gives up.
            await self._renew_once()

    def _closed(self) -> None:
        self._open -= 1
        self._last_use = time.monotonic()

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

    # --- paths --------------------------------------------------------------------------------

    async def reach(self, path: str) -> Way:
        """Make a Unix socket of the machine available as a file of this host."""
        way = await super().reach(path)
        self._ways.add(way)
        return way

    def path(self, target: str) -> str:
        """Where programs in the machine see what the spec mounted at `target`."""
        for mount in self._record.mounts:
            if target == mount.target or target.startswith(mount.target + "/"):
                return mount.seen + target[len(mount.target) :]
        return target

    def _locate(self, path: str) -> tuple[Seen, str] | None:
        """The mount that a path of the machine lies in, and where in it."""
        whole = os.path.normpath(os.path.join(self.layout.workdir, path))  # noqa: PTH118
        for mount in self._record.mounts:
            if whole == mount.seen or whole.startswith(mount.seen + "/"):
                return mount, whole[len(mount.seen) + 1 :]
        return None


class CountedProtocol(asyncio.StreamReaderProtocol):
    """Tells when a connection is over, so that idleness can be told."""

    def __init__(self, reader: asyncio.StreamReader, on_end: Callable[[], None]) -> None:
        super().__init__(reader)
        self._on_end = on_end

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        super().connection_lost(exc)
        self._on_end()
