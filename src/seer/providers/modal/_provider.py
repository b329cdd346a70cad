"""The `modal` provider: machines are Modal sandboxes."""

import asyncio
import dataclasses
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seer.errors import (
    IsolationError,
    PauseUnsupportedError,
    SandboxNotFoundError,
)
from seer.providers._base import Host, Machine
from seer.providers._registry import has_modal_credentials
from seer.providers._spec import MachineSpec
from seer.providers.modal import _sandboxes
from seer.providers.modal._link import ModalLink
from seer.providers.modal._options import MOST_SECONDS, ModalOptions, read_options
from seer.providers.modal._prices import PRICES_OF
from seer.providers.modal._sandboxes import ModalRental
from seer.providers.remote.controller._host import RemoteHost, digest
from seer.providers.remote.controller._known_hosts import recall, remember
from seer.providers.remote.controller._machine import RemoteMachine
from seer.providers.remote.controller._provider import RemoteProvider
from seer.providers.rented._host import CACHE, RentedHost
from seer.providers.rented._rental import retry_until_capacity

__all__ = ["ModalOptions", "ModalProvider"]

logger = logging.getLogger(__name__)

_STORE = Path(CACHE) / "seer" / "store"
_OF_THE_IMAGE = re.compile(
    "(MODAL|SEER|PYTHON|LD|LC|UV|PIP|NVIDIA|CUDA|NV|SSL|VIRTUAL_ENV|XDG)(_|[A-Z0-9]*$)"
    "|(PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TERM|TMPDIR|HOSTNAME|PWD|OLDPWD|SHLVL|_|"
    "DEBIAN_FRONTEND|GPG_KEY|container)$"
)
"""Variables of a sandbox at Modal that do not come from a secret."""


class ModalHost(RentedHost):
    """A Modal sandbox with a machine on it."""

    def __init__(
        self,
        rental: ModalRental,
        *,
        lease: float,
        variables: tuple[str, ...] = (),
        all_variables: bool = False,
    ) -> None:
        """Use a sandbox.

        Args:
            rental: The sandbox.
            lease: Seconds without a heartbeat after which it ends itself.
            variables: The variables of Modal secrets that its machine gets.
            all_variables: Whether the machine gets all variables of the secrets.
        """
        super().__init__(ModalLink(rental.sandbox, rental), rental, provider="modal", lease=lease)
        self._variables = variables
        self._all_variables = all_variables

    async def start(self, spec: MachineSpec) -> RemoteMachine:
        """Start the machine, without the parts that Modal itself handles."""
        env = {**await self._secrets(), **spec.env}
        return await super().start(dataclasses.replace(inner_spec(spec), env=env))

    def check_can_pause(self) -> None:
        """Refuse: Modal can end a sandbox or keep its files, but bills for a stopped one."""
        raise PauseUnsupportedError(
            "Modal cannot pause a sandbox with a GPU and keep its memory (its memory snapshots are "
            "an early preview for selected customers), and it also bills for a stopped sandbox; "
            "use snapshot() and terminate(), and later Sandbox.from_snapshot"
        )

    async def _secrets(self) -> dict[str, str]:
        if not self._variables and not self._all_variables:
            return {}
        ran = await self.link.run(["env", "-0"])
        pairs = (item.decode().partition("=") for item in ran.stdout.split(b"\0") if item)
        return {name: value for name, _, value in pairs if self._is_given(name)}

    def _is_given(self, name: str) -> bool:
        # Modal does not say which variables a secret has. So take all variables except those that
        # Modal and the image set.
        return name in self._variables or (self._all_variables and not _OF_THE_IMAGE.match(name))


def inner_spec(spec: MachineSpec) -> MachineSpec:
    """The spec for the inside of a sandbox.

    Modal restricts the network and is the outer boundary. Inside, programs run in a jail if Modal
    allows one, and otherwise as a different user than the keeper. A hidden model needs the jail,
    and is refused without it.
    """
    return dataclasses.replace(spec, network="host")


class Preparation(Host):
    """Prepares packages, models and repositories on a small machine without a GPU.

    It shares its volume with the sandbox's machine. So downloads are cheap, and the sandbox's
    machine can start without a network. The small machine is rented when something must run on it
    for the first time. It is released before the sandbox's machine starts, because only then does
    Modal show the volume's new content. Folders that are only copied wait for the sandbox's
    machine: their path there is a hash of their content.
    """

    name = "Modal"

    def __init__(self, rent: Callable[[], Awaitable[RentedHost]]) -> None:
        """Describe the preparation. Nothing is rented before it is needed."""
        self._rent = rent
        self._renting = asyncio.Lock()
        self._rented: RentedHost | None = None
        self._waiting: dict[Path, Path] = {}

    @property
    def unpushed(self) -> list[Path]:
        """The folders that must still be copied to the machine."""
        return list(self._waiting.values())

    async def run(
        self,
        module: str,
        request: Mapping[str, object],
        *,
        on_message: Callable[[Mapping[str, Any]], None],
    ) -> Mapping[str, Any]:
        """Run the `main` of a module of this package on the small machine."""
        host = await self._host()
        # The request may refer to copied folders.
        for there, folder in list(self._waiting.items()):
            await host.push(folder)
            self._waiting.pop(there, None)
        return await host.run(module, request, on_message=on_message)

    async def push(self, folder: Path) -> Path:
        """Copy a folder to the machine, at the latest when it starts. Returns its path."""
        if self._rented is not None:
            return await self._rented.push(folder)
        there = _STORE / await asyncio.to_thread(digest, folder)
        self._waiting[there] = folder
        return there

    async def _host(self) -> RentedHost:
        async with self._renting:
            if self._rented is None:
                self._rented = await self._rent()
            return self._rented

    async def release(self) -> None:
        """Release the small machine, if there is one. Everything that it prepared stays."""
        rented, self._rented = self._rented, None
        if rented is not None:
            await rented.leave()


class ModalProvider(RemoteProvider):
    """Machines in Modal's cloud."""

    name = "modal"
    rents = True

    def unavailable(self) -> str | None:
        """Why it cannot be used here: there are no credentials."""
        if has_modal_credentials():
            return None
        return "no Modal credentials are configured; run `modal token new`"

    async def kept_secrets(self, names: Sequence[str], options: object) -> tuple[str, ...]:
        """The names that are Modal secrets of this account."""
        if self.unavailable() is not None:
            return ()
        return await _sandboxes.kept_secrets(names, read_options(options))

    async def host(self, spec: MachineSpec) -> Host | None:
        """The host that prepares what a machine needs; see `Preparation`."""
        options = read_options(spec.options)
        simple = spec.gpu is None and spec.network in ("full", "host")
        if options.volume is None or simple:
            return await self._acquire(spec)
        small = dataclasses.replace(
            spec, gpu=None, gpu_count=1, cpus=None, memory=None, network="full", timeout=None
        )
        return Preparation(lambda: self._rent(small, purpose="preparation"))

    async def start(self, spec: MachineSpec) -> Machine:
        """Start a machine and hold its lease."""
        preparation = spec.host
        if not isinstance(preparation, Preparation):
            return await super().start(spec)
        await preparation.release()
        host = await self._acquire(spec)
        try:
            for folder in preparation.unpushed:
                await host.push(folder)
            return await super().start(dataclasses.replace(spec, host=host))
        except BaseException:
            # Release the host here: the caller knows only the preparation.
            await asyncio.shield(host.release())
            raise

    async def _acquire(self, spec: MachineSpec) -> RemoteHost:
        return await self._rent(spec, purpose="machine")

    async def _rent(self, spec: MachineSpec, *, purpose: str) -> ModalHost:
        self._check_credentials()
        if isinstance(spec.network, tuple) and not spec.network:
            raise IsolationError("network=(): name hosts, or use 'none'")
        options = read_options(spec.options)
        if spec.timeout is not None and spec.timeout > MOST_SECONDS:
            logger.warning(
                "timeout=%g: Modal ends every sandbox after %d hours",
                spec.timeout,
                MOST_SECONDS // 3600,
            )
        if options.app != ModalOptions.app or options.environment is not None:
            # Remember the place for later listings.
            where = {"app": options.app, "environment": options.environment}
            place = f"{options.app}@{options.environment or ''}"
            await asyncio.to_thread(remember, self.name, place, where)
        rental = await retry_until_capacity(
            lambda left: _sandboxes.create(spec, options, purpose=purpose, patience=left),
            what=f"gpu={spec.gpu!r} at Modal",
            patience=spec.start_timeout,
        )
        if rental.price is not None:
            logger.info(
                "%s: $%.2f per hour (Modal's list prices of %s)",
                rental.id,
                rental.price * 3600,
                PRICES_OF,
            )
        variables = tuple(name for names in options.secrets.values() for name in names)
        host = ModalHost(
            rental, lease=spec.lease, variables=variables, all_variables=bool(spec.kept_secrets)
        )
        host.keep()
        return host

    async def _host_at(self, place: str) -> RemoteHost | None:
        try:
            return ModalHost(await _sandboxes.find(place), lease=60.0)
        except SandboxNotFoundError:
            return None

    async def _places(self) -> list[str]:
        known = await asyncio.to_thread(recall, self.name)
        apps = [ModalOptions(), *(ModalOptions(**fields) for fields in known.values())]
        found = await asyncio.gather(*(_sandboxes.running(options) for options in apps))
        return [rental.id for rentals in found for rental in rentals]
