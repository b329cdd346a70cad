"""A rented machine as a host: signs of life, the one machine on it, letting go of it."""

import asyncio
import contextlib
import logging

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
from seer.providers.rented._rental import Rental

logger = logging.getLogger(__name__)

ROOT = "/seer"
"""Where everything of Seer's lies on a rented machine. Its user must be able to pass it."""
CACHE = f"{ROOT}/cache"
"""Where models and packages lie: the vendor's storage, if there is any."""


_SHORTEST = 9.0
_MOMENT = 2.0
_LAST_WORDS = 5.0
"""Seconds in which a rental monitor must have drawn its conclusion."""


def preparing_lease(lease: float) -> float:
    """Seconds of silence that a rented machine bears before there is a keeper on it.

    Signs of life are commands, which take their time, so very short leases are stretched.
    """
    return max(lease, _SHORTEST)


class RentedHost(RemoteHost):
    """A host that is given back with its machine."""

    def __init__(
        self, link: Link, rental: Rental, *, provider: str, lease: float, python: str = ""
    ) -> None:
        """Take over a rented machine; `keep` begins to give signs of life.

        Args:
            link: The way there.
            rental: The machine.
            provider: The provider's name.
            lease: Seconds of silence after which it gives itself back.
            python: Its interpreter; empty to look for one.
        """
        super().__init__(
            link,
            provider=provider,
            place=rental.id,
            root=ROOT,
            python=python,
            price=rental.price,
            # All of its GPUs are the machine's own.
            share_gpus=True,
        )
        self.rental = rental
        self._lease = preparing_lease(lease)
        self._beating: asyncio.Task[None] | None = None
        self._taken = False
        """Whether the vendor ended the machine, and no part of Seer did."""

    def keep(self) -> None:
        """Give signs of life until a machine runs on it."""
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 4)
            try:
                await self.link.run(["touch", f"{ROOT}/beat"])
            except ProviderError as error:
                logger.debug("%s: a sign of life did not arrive: %s", self.name, error)

    async def _stop_beating(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def start(self, spec: MachineSpec) -> RemoteMachine:
        """Start the machine; from then on its keeper decides how long it lives."""
        try:
            machine = await super().start(spec)
        except BaseException as error:
            lost = None
            if isinstance(error, ProviderError | SandboxLostError):
                lost = await self._lost()
            await asyncio.shield(self.release())
            if lost is not None:
                raise ProviderError(f"{self.name} ended while it was started: {lost}") from error
            raise
        await self._stop_beating()
        self.record_end_of(machine)
        return machine

    async def find(self, machine_id: str) -> RemoteMachine:
        """Adopt its machine; see `RemoteHost.find`."""
        lost = await self.rental.lost()
        if lost is not None:
            raise SandboxNotFoundError(f"sandbox {machine_id!r} is not running: {lost}")
        try:
            machine = await super().find(machine_id)
        except (ProviderError, SandboxLostError):
            # One that is about to end can still be found, and then no more.
            lost = await self._lost()
            if lost is None:
                raise
            raise SandboxNotFoundError(f"sandbox {machine_id!r} is not running: {lost}") from None
        self.record_end_of(machine)
        return machine

    async def _lost(self) -> SandboxLostError | None:
        """How the rented machine ended, if it has or is about to."""
        with contextlib.suppress(ProviderError):
            if await self.rental.gone(_MOMENT):
                return await self.rental.lost()
        return None

    async def how_it_ended(self, machine_id: str) -> str | None:
        """The reason of the machine's end; the vendor's where it is gone."""
        lost = await self._lost()
        if lost is not None:
            self._taken = isinstance(lost, PreemptedError)
            return str(lost)
        return await super().how_it_ended(machine_id)

    def name_loss(self, error: SandboxLostError) -> SandboxLostError:
        """The error for a machine that is lost, or that its vendor took away."""
        return PreemptedError(str(error)) if self._taken else error

    async def machine_ended(self) -> None:
        """The machine was terminated, so the rented one can go.

        Its rental monitor sees to that, and the vendor then remembers the reason.
        """
        with contextlib.suppress(ProviderError):
            await self.rental.gone(_LAST_WORDS)
        await self.release()

    async def leave(self) -> None:
        """Have it leave by itself, with what it wrote kept on its storage; then give it back."""
        await self._stop_beating()
        with contextlib.suppress(ProviderError):
            await self.link.run(["/bin/sh", "-c", "sync $0/cache; touch $0/leave", ROOT])
            await self.rental.gone(_LAST_WORDS)
        await self.release()

    async def release(self) -> None:
        """Give the rented machine back. If the vendor does not answer, it ends by itself."""
        await self._stop_beating()
        with contextlib.suppress(SeerError):
            await self.link.close()
        try:
            await self.rental.end()
        except ProviderError as error:
            logger.warning(
                "%s could not be told to end (%s); it ends by itself within %.0f s",
                self.name,
                error,
                self._lease,
            )
