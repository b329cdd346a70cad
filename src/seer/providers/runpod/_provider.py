"""The `runpod` provider: machines are RunPod pods, reached with SSH."""

import asyncio
import contextlib
import dataclasses
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import asyncssh

from seer.errors import (
    HostUnreachableError,
    HostUnsuitableError,
    IsolationError,
    PauseUnsupportedError,
    SandboxLostError,
    SandboxNotFoundError,
    SeerError,
)
from seer.providers._base import Machine
from seer.providers._spec import MachineSpec, MachineStatus
from seer.providers.remote.controller._host import RemoteHost, recorded_end
from seer.providers.remote.controller._link import Link
from seer.providers.remote.controller._machine import RemoteMachine
from seer.providers.remote.controller._provider import RemoteProvider
from seer.providers.rented._host import ROOT, RentedHost
from seer.providers.rented._rental import retry_until_capacity
from seer.providers.runpod import _keys, _pods
from seer.providers.runpod._api import has_key
from seer.providers.runpod._options import RunPodOptions, read_options
from seer.providers.runpod._pods import Pod
from seer.providers.ssh._link import SshLink
from seer.providers.ssh._options import SshOptions

__all__ = ["RunPodOptions", "RunPodProvider"]

logger = logging.getLogger(__name__)

_SERVER_PATIENCE = 60.0
"""Seconds for a pod's SSH server to start after its container."""
_PAUSE = 0.3
_POD = re.compile(r"[a-z0-9]{10,20}")


class PodLink(SshLink):
    """SSH to a pod. It distinguishes a pod that has ended from one that cannot be reached."""

    def __init__(self, pod: Pod, options: SshOptions) -> None:
        super().__init__(options)
        self.name = f"RunPod pod {pod.id}"
        self._pod = pod

    async def connect(self) -> asyncssh.SSHClientConnection:
        """The connection, opened if there is none; see `SshLink.connect`."""
        try:
            return await super().connect()
        except HostUnreachableError as error:
            with contextlib.suppress(HostUnreachableError):
                lost = await self._pod.lost()
                if lost is not None:
                    raise lost from error
            raise


class RunPodHost(RentedHost):
    """A pod, with a machine on it."""

    def __init__(
        self, pod: Pod, link: PodLink, *, lease: float, packages: tuple[str, ...] = ()
    ) -> None:
        super().__init__(link, pod, provider="runpod", lease=lease)
        self._packages = packages

    async def start(self, spec: MachineSpec) -> RemoteMachine:
        """Start the machine. The pod isolates it."""
        await self._await_packages()
        return await super().start(inner_spec(spec))

    async def run(
        self,
        module: str,
        request: Mapping[str, object],
        *,
        on_message: Callable[[Mapping[str, Any]], None],
    ) -> Mapping[str, Any]:
        """Run the `main` of a module of this package, once the system's packages are installed."""
        await self._await_packages()
        return await super().run(module, request, on_message=on_message)

    def check_can_pause(self) -> None:
        """Refuse: a stopped pod keeps only its volume."""
        raise PauseUnsupportedError(
            "RunPod cannot pause a pod and keep its memory: stopping one releases the GPU and "
            "keeps only the volume disk; use snapshot() and terminate(), and later "
            "Sandbox.from_snapshot"
        )

    async def _await_packages(self) -> None:
        """Wait for the packages that the pod has been installing since its start."""
        if not self._packages:
            return
        script = (
            "while [ ! -e $0/packages.done ]; do "
            "if [ -e $0/packages.failed ]; then tail -n 40 $0/packages.log >&2; exit 1; fi; "
            "sleep 0.3; done"
        )
        ran = await self.link.run(["/bin/sh", "-c", script, ROOT])
        if ran.exit_code != 0:
            words = ran.stderr.decode(errors="replace").strip()
            raise HostUnsuitableError(
                f"system_packages={list(self._packages)!r} were not installed: {words}"
            )
        self._packages = ()


def inner_spec(spec: MachineSpec) -> MachineSpec:
    """The spec for the inside of a pod, where root may not create namespaces.

    Raises:
        IsolationError: RunPod cannot enforce the requested network.
    """
    if isinstance(spec.network, tuple):
        raise IsolationError(
            f"network={list(spec.network)!r}: RunPod cannot restrict a pod to certain hosts; "
            f"use 'none', 'full', or another provider"
        )
    network = "none" if spec.network == "none" else "host"
    return dataclasses.replace(spec, network=network)


class RunPodProvider(RemoteProvider):
    """Machines in RunPod's cloud."""

    name = "runpod"
    rents = True

    def unavailable(self) -> str | None:
        """Why it cannot be used here: no key is configured."""
        if has_key():
            return None
        return "RUNPOD_API_KEY is not set; create a key at console.runpod.io/user/settings"

    async def _acquire(self, spec: MachineSpec) -> RemoteHost:
        self._check_credentials()
        inner_spec(spec)
        options = read_options(spec.options)
        began = time.monotonic()
        pod = await retry_until_capacity(
            lambda _: _pods.rent(spec, options),
            what=f"gpu={spec.gpu!r} at RunPod",
            patience=spec.start_timeout,
        )
        try:
            left = spec.start_timeout - (time.monotonic() - began)
            host = await _reach(pod, lease=spec.lease, patience=left, packages=spec.system_packages)
        except BaseException:
            await asyncio.shield(pod.end())
            raise
        logger.info("%s was ready after %.1f s", host.name, time.monotonic() - began)
        host.keep()
        return host

    async def find(self, machine_id: str) -> Machine:
        """Adopt a running machine, even one of another process."""
        place = machine_id.rpartition("@")[2]
        if not _POD.fullmatch(place):
            return await super().find(machine_id)
        try:
            if await _pods.find(place) is not None:
                return await super().find(machine_id)
        except (SandboxNotFoundError, SandboxLostError, HostUnreachableError):
            # The pod may have ended after RunPod listed it. Its end is then the reason.
            if await _pods.find(place) is not None:
                raise
        reason = await recorded_end(machine_id) or _pods.NO_RECORD
        raise SandboxNotFoundError(f"sandbox {machine_id!r} is not running: {reason}")

    async def _host_at(self, place: str) -> RemoteHost | None:
        pod = await _pods.find(place) if _POD.fullmatch(place) else None
        if pod is None:
            return None
        return await _reach(pod, lease=60.0, patience=_SERVER_PATIENCE)

    async def _machines_at(self, place: str) -> "list[MachineStatus]":
        host = await self._host_at(place)
        if host is None:
            return []
        try:
            return await host.machines()
        finally:
            # No machine of this process uses the connection. Each listing logs in to the pods
            # again.
            await _close(host.link)

    async def _places(self) -> list[str]:
        return [pod.id for pod in await _pods.running()]


async def _reach(
    pod: Pod, *, lease: float, patience: float, packages: tuple[str, ...] = ()
) -> RunPodHost:
    """Log in to a pod once its SSH server answers."""
    address, port, public = await pod.address(patience)
    identity, _ = await asyncio.to_thread(_keys.own_key)
    known = await asyncio.to_thread(_keys.known_hosts, pod.id, address, port, public)
    link = PodLink(
        pod,
        SshOptions(
            host=address,
            port=port,
            user="root",
            identity=str(identity),
            known_hosts=str(known),
            config="/dev/null",
        ),
    )
    deadline = time.monotonic() + min(max(patience, 1.0), _SERVER_PATIENCE)
    while True:
        try:
            await link.connect()
            return RunPodHost(pod, link, lease=lease, packages=packages)
        except HostUnreachableError:
            if time.monotonic() > deadline:
                await _close(link)
                raise
        await asyncio.sleep(_PAUSE)


async def _close(link: Link) -> None:
    try:
        await link.close()
    except SeerError as error:
        logger.debug("a connection was not closed: %s", error)
