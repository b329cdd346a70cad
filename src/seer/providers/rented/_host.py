"""A rented machine as a host: its monitor, heartbeats, the one machine on it, and its release."""

import asyncio
import contextlib
import json
import logging
from functools import cache
from pathlib import Path
from typing import Literal

from seer.errors import (
    PreemptedError,
    ProviderError,
    SandboxLostError,
    SandboxNotFoundError,
    SeerError,
)
from seer.providers._spec import MachineSpec
from seer.providers.remote.controller._host import RemoteHost
from seer.providers.remote.controller._link import Link
from seer.providers.remote.controller._machine import RemoteMachine
from seer.providers.rented import rental_monitor
from seer.providers.rented._rental import CODES, Rental

logger = logging.getLogger(__name__)

ROOT = "/seer"
"""Seer's folder on a rented machine. The sandbox's user must be able to enter it."""
CACHE = f"{ROOT}/cache"
"""The folder for models and packages. It is on the vendor's storage, if there is any."""


_SHORTEST = 9.0
_MOMENT = 2.0
_END_PATIENCE = 5.0
"""Seconds within which a rental monitor must notice that its machine has ended."""


@cache
def monitor_source() -> str:
    """The program of the rental monitor."""
    return Path(rental_monitor.__file__).read_text(encoding="utf-8")


def monitor_settings(lease: float, *, lifetime: int, give_back: Literal["exit", "runpod"]) -> str:
    """The argument of the rental monitor.

    Args:
        lease: The machine's lease in seconds.
        lifetime: Seconds after which the rental always ends; 0 for no limit.
        give_back: How the rental ends: by the monitor's exit, or by a request to RunPod.
    """
    return json.dumps(
        {
            "root": ROOT,
            "lease": _preparing_lease(lease),
            "lifetime": lifetime,
            "give_back": give_back,
            "codes": CODES,
            "mark": True,
        }
    )


def _preparing_lease(lease: float) -> float:
    """Seconds without a heartbeat after which a rented machine ends while it is prepared.

    A heartbeat is a command and takes time, so very short leases are extended.
    """
    return max(lease, _SHORTEST)


class RentedHost(RemoteHost):
    """A host that is rented for one machine, and released with it."""

    def __init__(self, link: Link, rental: Rental, *, provider: str, lease: float) -> None:
        """Use a rented machine. `keep` starts its heartbeats.

        Args:
            link: The connection to it.
            rental: The machine.
            provider: The provider's name.
            lease: Seconds without a heartbeat after which the machine ends itself.
        """
        super().__init__(
            link,
            provider=provider,
            place=rental.id,
            root=ROOT,
            price=rental.price,
            # All its GPUs belong to the one machine.
            share_gpus=True,
        )
        self.rental = rental
        self._lease = _preparing_lease(lease)
        self._beating: asyncio.Task[None] | None = None
        self._preempted = False
        """Whether the vendor, rather than Seer, ended the machine."""

    def keep(self) -> None:
        """Send heartbeats until a machine runs on it."""
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 4)
            try:
                await self.link.run(["touch", f"{ROOT}/beat"])
            except ProviderError as error:
                logger.debug("%s: a heartbeat failed: %s", self.name, error)

    async def _stop_beating(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def start(self, spec: MachineSpec) -> RemoteMachine:
        """Start the machine. From then on, its keeper decides when it ends."""
        try:
            machine = await super().start(spec)
        except BaseException as error:
            lost = None
            if isinstance(error, ProviderError | SandboxLostError):
                lost = await self._lost()
            await asyncio.shield(self.release())
            if lost is not None:
                raise ProviderError(f"{self.name} ended while it was starting: {lost}") from error
            raise
        await self._stop_beating()
        self.record_end_of(machine)
        return machine

    async def find(self, machine_id: str) -> RemoteMachine:
        """Adopt the host's machine; see `RemoteHost.find`."""
        lost = await self.rental.lost()
        if lost is not None:
            raise SandboxNotFoundError(f"sandbox {machine_id!r} is not running: {lost}")
        try:
            machine = await super().find(machine_id)
        except (ProviderError, SandboxLostError):
            # The vendor may still list a machine that is about to end.
            lost = await self._lost()
            if lost is None:
                raise
            raise SandboxNotFoundError(f"sandbox {machine_id!r} is not running: {lost}") from None
        self.record_end_of(machine)
        return machine

    async def _lost(self) -> SandboxLostError | None:
        """How the rented machine ended, if it has ended or is about to."""
        with contextlib.suppress(ProviderError):
            if await self.rental.gone(_MOMENT):
                return await self.rental.lost()
        return None

    async def how_it_ended(self, machine_id: str) -> str | None:
        """Why the machine ended, according to the vendor if the rented machine is gone."""
        lost = await self._lost()
        if lost is not None:
            self._preempted = isinstance(lost, PreemptedError)
            return str(lost)
        return await super().how_it_ended(machine_id)

    def explain_loss(self, error: SandboxLostError) -> SandboxLostError:
        """The error for a lost machine; `PreemptedError` if its vendor ended it."""
        return PreemptedError(str(error)) if self._preempted else error

    async def machine_ended(self) -> None:
        """End the rental, because its machine was terminated.

        The rental monitor gets the first chance, so that the vendor records the reason.
        """
        with contextlib.suppress(ProviderError):
            await self.rental.gone(_END_PATIENCE)
        await self.release()

    async def leave(self) -> None:
        """Have the machine flush its storage and end itself, then release it."""
        await self._stop_beating()
        # The machine may end before it answers.
        with contextlib.suppress(ProviderError, SandboxLostError):
            await self.link.run(["/bin/sh", "-c", "sync $0/cache; touch $0/leave", ROOT])
            await self.rental.gone(_END_PATIENCE)
        await self.release()

    async def release(self) -> None:
        """Release the rented machine. If the vendor does not answer, the machine ends itself."""
        await self._stop_beating()
        with contextlib.suppress(SeerError):
            await self.link.close()
        try:
            await self.rental.end()
        except ProviderError as error:
            logger.warning(
                "%s could not be ended (%s); it ends itself within %.0f s",
                self.name,
                error,
                self._lease,
            )
