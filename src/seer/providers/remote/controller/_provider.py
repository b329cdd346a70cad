"""Start, find and list machines in terms of hosts: the base of every remote provider.

A provider chooses the host of a new machine (`_acquire`), finds the host of an existing machine
(`_host_at`) and lists its hosts (`_places`).
"""

import asyncio
import logging
import re
from abc import abstractmethod

from seer.errors import CredentialsError, ProviderError, SandboxNotFoundError, SeerError
from seer.providers._base import Host, Machine, Provider
from seer.providers._spec import MachineSpec, MachineStatus
from seer.providers.remote.controller._host import RemoteHost

logger = logging.getLogger(__name__)

_ID = re.compile(r"(sb-[0-9a-f]+)@(.+)")
_LIST_PATIENCE = 20.0


class RemoteProvider(Provider):
    """A provider whose machines run on other hosts."""

    @abstractmethod
    async def _acquire(self, spec: MachineSpec) -> RemoteHost:
        """The host for a machine of this spec, rented if necessary.

        Raises:
            ProviderError: No host is available.
        """

    @abstractmethod
    async def _host_at(self, place: str) -> RemoteHost | None:
        """The host of machines whose ids end in `@place`; None if there is none."""

    @abstractmethod
    async def _places(self) -> list[str]:
        """All places where machines of this user may run."""

    def _check_credentials(self) -> None:
        """Refuse to rent anything while `unavailable` gives a reason.

        Raises:
            CredentialsError: There is a reason.
        """
        reason = self.unavailable()
        if reason is not None:
            raise CredentialsError(reason)

    async def host(self, spec: MachineSpec) -> Host | None:
        """The host on which a machine of this spec will run."""
        return await self._acquire(spec)

    async def start(self, spec: MachineSpec) -> Machine:
        """Start a machine and hold its lease."""
        host = spec.host
        if host is None:
            host = await self._acquire(spec)
        elif not isinstance(host, RemoteHost):
            raise ProviderError(f"host={host!r} does not belong to the provider {self.name!r}")
        try:
            machine = await host.start(spec)
        except BaseException:
            if spec.host is None:
                await asyncio.shield(host.release())
            raise
        if host.price is not None:
            logger.info("%s: $%.4f per hour", machine.id, host.price * 3600)
        return machine

    async def find(self, machine_id: str) -> Machine:
        """Adopt a running machine, even one of another process."""
        matched = _ID.fullmatch(machine_id)
        host = await self._host_at(matched[2]) if matched is not None else None
        if matched is None or host is None:
            raise SandboxNotFoundError(
                f"{machine_id!r} is not the id of a sandbox of the provider {self.name!r} "
                f"(they look like sb-0123456789abcdef@place)"
            )
        return await host.find(matched[1])

    async def list(self) -> list[MachineStatus]:
        """All running machines of this user."""
        found = await asyncio.gather(*map(self._list_at, await self._places()))
        # A host with two names would otherwise list everything twice.
        once = {status.id.partition("@")[0]: status for each in reversed(found) for status in each}
        return list(once.values())

    async def _list_at(self, place: str) -> "list[MachineStatus]":
        try:
            async with asyncio.timeout(_LIST_PATIENCE):
                return await self._machines_at(place)
        except (SeerError, TimeoutError) as error:
            logger.warning("%s: its machines cannot be listed: %s", place, error)
            return []

    async def _machines_at(self, place: str) -> "list[MachineStatus]":
        """The machines that run at a place."""
        host = await self._host_at(place)
        return await host.machines() if host is not None else []
