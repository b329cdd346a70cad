"""A controller's hold on a machine: the lease, pausing, the end and its reason.

All of this goes through the machine's keeper. Commands, files and sockets go through the machine's
steward; see `_steward`.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable

from seer.errors import ProviderError, SandboxLostError, SandboxPausedError, SandboxStateError
from seer.providers.agent import wire
from seer.providers.client._keeper import KeeperClient

logger = logging.getLogger(__name__)

_STATUS_PERIOD = 0.05
_REASON_TIMEOUT = 3.0
"""Seconds to wait for the keeper's reason when a connection to the steward ended."""
_END_TIMEOUT = 60.0


class Lease:
    """Renews a machine's lease until the machine has ended."""

    def __init__(
        self,
        keeper: KeeperClient,
        *,
        machine_id: str,
        seconds: float,
        idle_timeout: float | None,
        why_ended: Callable[[], Awaitable[str | None]],
        explain: Callable[[SandboxLostError], SandboxLostError],
        on_end: Callable[[], Awaitable[None]],
    ) -> None:
        """Hold a machine, and begin to renew its lease.

        Args:
            keeper: The connection to the machine's keeper.
            machine_id: The machine's id, for messages.
            seconds: How long the machine outlives the last renewal.
            idle_timeout: Seconds without use after which the keeper ends the machine.
            why_ended: Looks up how the machine ended, if its keeper cannot report that; None if it
                is unknown.
            explain: Adds details about the machine's host to the error for a lost machine.
            on_end: Awaited once, after the machine has ended or was let go.
        """
        self.paused = keeper.was_paused
        """Whether the machine is paused, according to the keeper's latest answer."""
        self.detached = False
        self.was_detached = keeper.was_detached
        """Whether the machine was detached before this controller held it."""
        self.was_let_go = False
        """Whether this controller released the machine while it was running."""
        self._keeper = keeper
        self._id = machine_id
        self._seconds = seconds
        self._idle_timeout = idle_timeout
        self._why_ended = why_ended
        self._explain = explain
        self._on_end = on_end
        self._process = os.getpid()
        self._open = 0
        self._last_use = self._last_renewal = time.monotonic()
        self._renewing = asyncio.create_task(self._renew())

    @property
    def ended(self) -> asyncio.Event:
        """Set once the keeper is gone, and the machine with it."""
        return self._keeper.ended

    @property
    def stopped(self) -> bool:
        """Whether all processes of the machine have ended; its files may still exist."""
        return self._keeper.stopped.is_set()

    # --- renewal and use ----------------------------------------------------------------------

    async def _renew(self) -> None:
        period = min(self._seconds, self._idle_timeout or self._seconds) / 3
        while not self._keeper.ended.is_set():
            # A renewal without an answer may still be in transit over a connection that is down.
            with contextlib.suppress(SandboxLostError):
                await self._renew_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await self._keeper.ended.wait()
        await self._on_end()

    async def _renew_once(self) -> None:
        now = self._last_renewal = time.monotonic()
        idle = 0.0 if self._open else now - self._last_use
        await self._ask("renew", {"idle_ms": int(idle * 1000)})

    async def connection_opened(self) -> None:
        """Count a connection: while one is open, the machine is not idle."""
        self._open += 1
        if self._idle_timeout and time.monotonic() - self._last_renewal > 0.1:
            # The keeper must learn about the use before it ends an idle machine.
            await self._renew_once()

    def connection_closed(self) -> None:
        """Count a connection that ended."""
        self._open -= 1
        self._last_use = time.monotonic()

    async def check_usable(self) -> None:
        """Refuse to use a machine that cannot answer.

        Raises:
            SandboxPausedError: It is paused. The keeper decides, because another controller may
                have resumed it.
            SandboxStateError: This process is a fork, and its parent owns the connections.
        """
        if self._process != os.getpid():
            raise SandboxStateError(
                f"sandbox {self._id!r} belongs to process {self._process}, and this process is a "
                f"fork of it; use from_id({self._id!r}) here, or make another sandbox"
            )
        if self.paused:
            try:
                await self._ask("status")
            except SandboxLostError:
                self.paused = False  # it has ended; the operation itself reports that
        if self.paused:
            raise SandboxPausedError(f"sandbox {self._id!r} is paused; call resume() first")

    # --- requests to the keeper ---------------------------------------------------------------

    async def _ask(
        self, op: str, fields: "dict[str, wire.Encodable] | None" = None
    ) -> "wire.Message":
        """Send a request; every answer also says whether the machine is paused."""
        answer = await self._keeper.request(op, fields)
        self.paused = bool(wire.get_int(answer, "paused", 0))
        return answer

    async def _ask_or_explain(self, op: str) -> "wire.Message":
        """Send a request; if the machine is gone, raise the reason."""
        try:
            return await self._ask(op)
        except SandboxLostError:
            raise await self.why_lost() from None

    async def pause(self) -> None:
        """Stop every process in the machine and keep its memory."""
        answer = await self._ask_and_wait("pause")
        kept = wire.get_text(answer, "kept", "")
        if kept:
            logger.warning(
                "sandbox %s is paused; its GPU memory stays allocated: %s", self._id, kept
            )

    async def resume(self) -> None:
        """Continue a paused machine."""
        await self._ask_and_wait("resume")
        self._last_use = time.monotonic()

    async def _ask_and_wait(self, op: str) -> "wire.Message":
        """Pause or resume. The keeper answers at once; moving GPU memory may take longer."""
        answer = await self._ask_or_explain(op)
        while wire.get_int(answer, "moving", 0):
            await asyncio.sleep(_STATUS_PERIOD)
            answer = await self._ask_or_explain("status")
        problem = wire.get_text(answer, "problem", "")
        if problem:
            raise ProviderError(f"sandbox {self._id!r} cannot {op}: {problem}")
        return answer

    async def detach(self) -> None:
        """Let the machine outlive this controller."""
        await self._ask_or_explain("detach")
        self.detached = True

    async def let_go(self) -> None:
        """Stop holding the machine, and leave it as it was before."""
        self.was_let_go = True
        await self._keeper.let_go()
        await asyncio.gather(self._renewing, return_exceptions=True)

    async def check_limits(self) -> None:
        """Have the keeper check the machine's limits now.

        Raises:
            SandboxLostError: The machine was over a limit, so it was ended.
        """
        await self._ask_or_explain("look")

    # --- the end ------------------------------------------------------------------------------

    async def terminate(self) -> None:
        """End the machine and everything in it, and wait until its files are removed."""
        await self._keeper.tell("terminate")
        try:
            async with asyncio.timeout(_END_TIMEOUT):
                await self._keeper.stopped.wait()
        except TimeoutError:
            raise SandboxLostError(
                f"sandbox {self._id!r} did not end within {_END_TIMEOUT:g} s; "
                f"look for processes that cannot be killed (state D)"
            ) from None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT):
                await self._keeper.ended.wait()
        if not self._keeper.ended.is_set():
            logger.warning("sandbox %s has ended; its files are still being removed", self._id)
            await self._keeper.ended.wait()
        await asyncio.gather(self._renewing, return_exceptions=True)

    async def reason(self) -> str:
        """How the machine ended, as far as known."""
        return self._keeper.reason or await self._why_ended() or "its keeper was killed"

    async def why_lost(self) -> SandboxLostError:
        """The error to raise when a connection to the steward ended too early."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REASON_TIMEOUT):
                await self._keeper.stopped.wait()
        if not self._keeper.stopped.is_set():
            error = SandboxLostError(
                "the process that served this operation in the sandbox was killed; the sandbox "
                "itself still runs"
            )
        else:
            error = SandboxLostError(f"the sandbox was ended: {await self.reason()}")
        return self._explain(error)
