"""The node of one actor as a host: the machine on it, and the resources that go with it."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from seer._places import state_dir
from seer.errors import (
    ProviderError,
    SandboxLostError,
    SandboxNotFoundError,
    SandboxStateError,
    SeerError,
)
from seer.providers._spec import MachineSpec, MachineStatus
from seer.providers.agent.cleaning import record_end
from seer.providers.ray._driver import Driver
from seer.providers.ray._link import RayLink
from seer.providers.ray._options import RayOptions
from seer.providers.remote.controller._host import RemoteHost
from seer.providers.remote.controller._machine import RemoteMachine

logger = logging.getLogger(__name__)

_NODE_SHOWN = 12


class RayHost(RemoteHost):
    """A node, as far as one actor holds it."""

    link: RayLink

    def __init__(
        self, driver: Driver, actor: str, way: Mapping[str, Any], *, options: RayOptions
    ) -> None:
        """Take over what an actor holds.

        Args:
            driver: The connection to the cluster.
            actor: The actor's name.
            way: What it said of itself.
            options: The provider's options.
        """
        node = way["node"][:_NODE_SHOWN]
        super().__init__(
            RayLink(way, name=f"Ray's node {node}", lost=lambda: driver.lost(actor)),
            provider="ray",
            place=f"{node}.{actor}",
            root=options.root,
            python=options.python or way["python"],
            price=options.price_per_hour / 3600 or None,
            environment={"SEER_MODEL_STORE": options.models} if options.models else {},
            devices=way["gpus"],
        )
        self._driver = driver
        self._actor = actor
        self._machine: str = way["machine"]
        self._remembering: set[asyncio.Task[None]] = set()

    async def start(self, spec: MachineSpec) -> RemoteMachine:
        """Start the machine; from then on it and the actor end together."""
        try:
            machine = await super().start(spec)
            try:
                await self._tell_born(machine)
            except BaseException:
                await asyncio.shield(machine.terminate())
                raise
        except BaseException:
            await asyncio.shield(self.release())
            raise
        self._remember_end_of(machine)
        return machine

    async def _tell_born(self, machine: RemoteMachine) -> None:
        self._machine = machine.id.partition("@")[0]
        await self._driver.ask("born", name=self._actor, machine=self._machine)

    async def find(self, machine_id: str) -> RemoteMachine:
        """Adopt its machine; see `RemoteHost.find`."""
        if machine_id != self._machine:
            raise SandboxNotFoundError(f"no sandbox {machine_id!r} runs on {self.name}")
        # Before the machine is held: the actor must know of every holder.
        await self._driver.ask("way", name=self._actor, hold=True)
        try:
            machine = await super().find(machine_id)
        except SandboxLostError as error:
            raise SandboxNotFoundError(f"sandbox {machine_id!r} is not running: {error}") from None
        self._remember_end_of(machine)
        return machine

    async def machines(self) -> list[MachineStatus]:
        """The machine that this actor holds; others of the node have actors of their own."""
        if not self._machine:
            return []
        found = await super().machines()
        return [status for status in found if status.id.partition("@")[0] == self._machine]

    async def how_it_ended(self, machine_id: str) -> str | None:
        """The reason of the machine's end."""
        reason = self._driver.lost(self._actor)
        if reason is not None:
            return f"the Ray actor that held it is gone: {reason}"
        return await super().how_it_ended(machine_id)

    def may_detach(self) -> None:
        """Refuse to detach from a Ray that ends with this process.

        Raises:
            SandboxStateError: It does.
        """
        if not self._driver.address:
            raise SandboxStateError(
                "this Ray was started for this program and ends with it, and so does the sandbox; "
                "start one with `ray start --head` and set RAY_ADDRESS"
            )

    async def machine_ended(self) -> None:
        """The machine was terminated, so its resources can go."""
        await self.release()

    async def release(self) -> None:
        """Give the resources back, and end what still runs there."""
        with contextlib.suppress(SeerError):
            await self.link.close()
        try:
            await self._driver.ask("end", name=self._actor, gently=True)
        except ProviderError as error:
            logger.warning("%s could not be given back: %s", self.name, error)
        await asyncio.gather(*self._remembering, return_exceptions=True)

    def _remember_end_of(self, machine: RemoteMachine) -> None:
        """Note here how it ends: the node may go, and others need not ask it."""
        task = asyncio.create_task(_remember(machine))
        self._remembering.add(task)
        task.add_done_callback(self._remembering.discard)


async def _remember(machine: RemoteMachine) -> None:
    reason = await machine.ended()
    await asyncio.to_thread(
        record_end, os.fsencode(state_dir()), machine.id, reason, at=time.time()
    )
