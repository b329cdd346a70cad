"""The `ray` provider: machines on any node of a Ray cluster with enough free resources."""

import asyncio
import contextlib
import importlib.util
import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from seer.console._progress import current_phase
from seer.errors import (
    CapacityError,
    ConfigError,
    HostUnsuitableError,
    MissingExtraError,
    ProviderError,
    SandboxLostError,
    SandboxNotFoundError,
    SandboxStateError,
    SeerError,
)
from seer.providers._base import Machine
from seer.providers._gpus import is_kind
from seer.providers._spec import MachineSpec, MachineStatus
from seer.providers.ray._driver_client import DriverClient
from seer.providers.ray._link import RayLink
from seer.providers.ray._options import RayOptions, read_options
from seer.providers.remote.controller._host import RemoteHost, recorded_end
from seer.providers.remote.controller._machine import RemoteMachine
from seer.providers.remote.controller._provider import RemoteProvider

__all__ = ["RayOptions", "RayProvider"]

logger = logging.getLogger(__name__)

_PLACE = re.compile(r"([0-9a-f]{12})\.([0-9a-f]{16})")
_FIRST_DRIVER = 60.0
"""Seconds that a new actor waits for its driver."""
_REPEAT = 10.0
_NODE_SHOWN = 12
_ATTEMPTS = 3
_CERTIFICATE_LIFE = timedelta(days=3650)
_CLOCKS_DIFFER = timedelta(days=1)
_KIND = "accelerator_type:"
STARTING = "Ray has found a node and is starting a worker on it"
_SCHEDULED = ("CPU", "GPU", "memory")


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """The resources of one machine, in Ray's terms."""

    cpus: float
    gpus: int
    memory: int
    kind: str
    """Ray's name for the kind of GPU; empty for any kind or no GPU."""
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    node: str

    def request(self) -> dict[str, object]:
        """As plain data, for the driver."""
        return {
            "cpus": self.cpus,
            "gpus": self.gpus,
            "memory": self.memory,
            "kind": self.kind,
            "resources": dict(self.resources),
            "labels": dict(self.labels),
            "node": self.node,
        }

    def totals(self) -> dict[str, float]:
        """The amount of each of Ray's resources."""
        taken = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory, **self.resources}
        return {name: amount for name, amount in taken.items() if amount}


def resources_of(
    spec: MachineSpec, options: RayOptions, nodes: Sequence[Mapping[str, float]]
) -> ResourceRequest:
    """The resources that a spec needs.

    Args:
        spec: The machine to start.
        options: The provider's options.
        nodes: The resources of all nodes of the cluster.

    Raises:
        HostUnsuitableError: The cluster has no GPU of this kind.
    """
    return ResourceRequest(
        cpus=options.cpus if spec.cpus is None else spec.cpus,
        gpus=spec.gpu_count if spec.gpu is not None else 0,
        memory=spec.memory or 0,
        kind="" if spec.gpu is None else _kind_of(spec.gpu, nodes),
        resources=options.resources,
        labels=options.labels,
        node=options.node,
    )


def _kind_of(gpu: str, nodes: Sequence[Mapping[str, float]]) -> str:
    """Ray's name for a kind of GPU: the most frequent one that matches."""
    there: dict[str, float] = {}
    for node in nodes:
        for name in node:
            if name.startswith(_KIND) and node.get("GPU", 0):
                kind = name.removeprefix(_KIND)
                there[kind] = there.get(kind, 0.0) + node["GPU"]
    fitting = {kind: count for kind, count in there.items() if is_kind(gpu, kind)}
    if fitting:
        return max(fitting, key=lambda kind: fitting[kind])
    names = ", ".join(f"{kind} ({count:g})" for kind, count in sorted(there.items()))
    raise HostUnsuitableError(
        f"gpu={gpu!r} was requested; the Ray cluster has: {names or 'no GPU of a known kind'}"
    )


def describe_waiting(wants: ResourceRequest, seen: Mapping[str, Any]) -> str:
    """Describe a machine that is waiting for resources, in one line.

    Args:
        wants: The resources that it is waiting for.
        seen: `free` and `largest` (the amount of each resource, in the cluster and on one node),
            and `waiting` (how many requests are waiting in the cluster).
    """
    if not seen["waiting"]:
        return STARTING
    asked = wants.totals()
    free: Mapping[str, float] = seen["free"]
    largest: Mapping[str, float] = seen["largest"]
    shown = [*(name for name in _SCHEDULED if name in asked), *sorted(wants.resources)]
    needs = ", ".join(_amount(name, asked[name]) for name in shown) or "room"
    has = ", ".join(_amount(name, free.get(name, 0.0)) for name in shown)
    words = f"Ray: waiting for {needs}; free in the cluster: {has or 'nothing'}"
    waiting = int(seen["waiting"])
    words += f"; {waiting} wait{'s' if waiting == 1 else ''} in the cluster"
    small = [name for name in shown if largest.get(name, 0.0) < asked[name]]
    if small:
        most = ", ".join(_amount(name, largest.get(name, 0.0)) for name in small)
        words += f"; no node is large enough (the largest has {most})"
    return words


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / (1 << 30):.1f} GiB"
    return f"{amount:g} {name}"


class RayHost(RemoteHost):
    """The part of a node that one actor holds."""

    link: RayLink

    def __init__(
        self, driver: DriverClient, actor: str, contact: Mapping[str, Any], *, options: RayOptions
    ) -> None:
        """Use the resources that an actor holds.

        Args:
            driver: The connection to the cluster.
            actor: The actor's name.
            contact: What the actor reported about itself: its address, certificate and node.
            options: The provider's options.
        """
        node = contact["node"][:_NODE_SHOWN]
        super().__init__(
            RayLink(contact, name=f"Ray's node {node}", lost=lambda: driver.lost(actor)),
            provider="ray",
            place=f"{node}.{actor}",
            root=options.root,
            python=options.python or contact["python"],
            price=options.price_per_hour / 3600 or None,
            environment={"SEER_MODEL_STORE": options.models} if options.models else {},
            devices=contact["gpus"],
        )
        self._driver = driver
        self._actor = actor
        self._machine: str = contact["machine"]

    async def start(self, spec: MachineSpec) -> RemoteMachine:
        """Start the machine. From then on, it and the actor end together."""
        try:
            machine = await super().start(spec)
            try:
                self._machine = machine.id.partition("@")[0]
                await self._driver.ask("started", name=self._actor, machine=self._machine)
            except BaseException:
                await asyncio.shield(machine.terminate())
                raise
        except BaseException:
            await asyncio.shield(self.release())
            raise
        self.record_end_of(machine)
        return machine

    async def find(self, machine_id: str) -> RemoteMachine:
        """Adopt the actor's machine; see `RemoteHost.find`."""
        if machine_id != self._machine:
            raise SandboxNotFoundError(f"no sandbox {machine_id!r} runs on {self.name}")
        # The actor must know every holder before the holder takes over the machine.
        await self._driver.ask("contact", name=self._actor, hold=True)
        try:
            machine = await super().find(machine_id)
        except SandboxLostError as error:
            raise SandboxNotFoundError(f"sandbox {machine_id!r} is not running: {error}") from None
        self.record_end_of(machine)
        return machine

    async def machines(self) -> list[MachineStatus]:
        """The machine that this actor holds. Other machines on the node have their own actors."""
        if not self._machine:
            return []
        found = await super().machines()
        return [status for status in found if status.id.partition("@")[0] == self._machine]

    async def how_it_ended(self, machine_id: str) -> str | None:
        """The reason why the machine ended."""
        reason = self._driver.lost(self._actor)
        if reason is not None:
            return f"the Ray actor that held it is gone: {reason}"
        return await super().how_it_ended(machine_id)

    def check_can_detach(self) -> None:
        """Refuse to detach if this Ray ends with this process.

        Raises:
            SandboxStateError: This Ray ends with this process.
        """
        if not self._driver.address:
            raise SandboxStateError(
                "this program started this Ray, so Ray and the sandbox end with the program; "
                "start a cluster with `ray start --head` and set RAY_ADDRESS"
            )

    async def machine_ended(self) -> None:
        """The machine was terminated, so release its resources."""
        await self.release()

    async def release(self) -> None:
        """Release the resources, and end everything that still runs on them."""
        with contextlib.suppress(SeerError):
            await self.link.close()
        try:
            await self._driver.ask("end", name=self._actor, gently=True)
        except ProviderError as error:
            logger.warning("%s could not be released: %s", self.name, error)
        await self.ends_recorded()


class RayProvider(RemoteProvider):
    """Machines on a Ray cluster."""

    name = "ray"

    def __init__(self) -> None:
        self._drivers: dict[str, DriverClient] = {}
        self._connecting = asyncio.Lock()
        self._options: dict[str, RayOptions] = {}
        self._hosts: dict[str, RayHost] = {}

    def unavailable(self) -> str | None:
        """Why it cannot be used here: Ray is not installed."""
        if any(importlib.util.find_spec(name) is None for name in ("ray", "cryptography")):
            return "Ray is not installed; run: pip install 'seer-interp[ray]'"
        try:
            read_options(None)
        except ConfigError as error:
            return str(error)
        return None

    @property
    def hosts(self) -> tuple[RayHost, ...]:
        """The nodes that this process has machines on, one for each machine."""
        return tuple(self._hosts.values())

    async def aclose(self) -> None:
        """Disconnect from every cluster. A Ray that was started here ends with its machines."""
        drivers, self._drivers = self._drivers, {}
        for driver in drivers.values():
            await driver.close()

    # --- placing ------------------------------------------------------------------------------

    async def _acquire(self, spec: MachineSpec) -> RemoteHost:
        options = read_options(spec.options)
        driver = await self._driver(options.address)
        nodes: list[dict[str, Any]] = await driver.ask("nodes")
        wants = resources_of(spec, options, [node["resources"] for node in nodes])
        deadline = time.monotonic() + spec.start_timeout
        lost = ""
        for _ in range(_ATTEMPTS):
            actor = secrets.token_hex(8)
            try:
                patience = deadline - time.monotonic()
                contact = await self._place(driver, actor, wants, patience=patience)
                return self._host(driver, actor, contact, options)
            except SandboxLostError as error:
                # Ray may choose a dead node until it detects the failure.
                lost = str(error)
                logger.warning("an actor was lost before it ran; trying again: %s", lost)
            except BaseException:
                await asyncio.shield(_give_up(driver, actor))
                raise
        raise ProviderError(f"no actor started in {_ATTEMPTS} attempts: {lost}")

    async def _place(
        self, driver: DriverClient, actor: str, wants: ResourceRequest, *, patience: float
    ) -> Mapping[str, Any]:
        certificate, key = await asyncio.to_thread(make_certificate)
        settings = {
            "certificate": certificate,
            "key": key,
            "secret": secrets.token_hex(32),
            "patience": _FIRST_DRIVER,
        }
        reporter = _WaitReporter(wants)
        try:
            async with asyncio.timeout(patience):
                return await driver.ask(
                    "place",
                    on_waiting=reporter.report,
                    name=actor,
                    wants=wants.request(),
                    settings=settings,
                )
        except TimeoutError:
            words = reporter.last or "Ray did not start its actor"
            raise CapacityError(
                f"no free resources within the remaining {patience:.0f} s of start_timeout: "
                f"{words}. Request less, add a node, or use a longer start_timeout"
            ) from None

    def _host(
        self, driver: DriverClient, actor: str, contact: Mapping[str, Any], options: RayOptions
    ) -> RayHost:
        self._hosts = {
            name: host for name, host in self._hosts.items() if driver.lost(name) is None
        }
        host = RayHost(driver, actor, contact, options=options)
        self._hosts[actor] = host
        self._options[options.address] = options
        return host

    async def _driver(self, address: str) -> DriverClient:
        reason = self.unavailable()
        if reason is not None:
            raise MissingExtraError(reason)
        async with self._connecting:
            driver = self._drivers.get(address)
            if driver is None or not driver.alive:
                driver = self._drivers[address] = await DriverClient.connect(address)
            return driver

    # --- finding ------------------------------------------------------------------------------

    async def _cluster(self) -> tuple[DriverClient, RayOptions] | None:
        """The cluster to search; None if there is none. A search must not start a cluster."""
        options = read_options(None)
        if not options.address and "" not in self._drivers:
            return None
        options = self._options.get(options.address, options)
        return await self._driver(options.address), options

    async def find(self, machine_id: str) -> Machine:
        """Adopt a running machine, even one of another process."""
        matched = _PLACE.fullmatch(machine_id.rpartition("@")[2])
        cluster = await self._cluster() if matched is not None else None
        if matched is None or cluster is None:
            return await super().find(machine_id)
        try:
            return await super().find(machine_id)
        except SandboxNotFoundError as error:
            driver, options = cluster
            reason = await self._reason(driver, options, machine_id, node=matched[1])
            raise SandboxNotFoundError(
                f"sandbox {machine_id!r} is not running: {reason or error}"
            ) from None

    async def _reason(
        self, driver: DriverClient, options: RayOptions, machine_id: str, *, node: str
    ) -> str | None:
        known = await recorded_end(machine_id)
        if known is not None:
            return known
        machine = machine_id.partition("@")[0]
        try:
            return await driver.ask("ended", node=node, machine=machine, root=options.root)
        except SeerError as error:
            return f"its node could not report how it ended: {error}"

    async def _host_at(self, place: str) -> RemoteHost | None:
        matched = _PLACE.fullmatch(place)
        cluster = await self._cluster() if matched is not None else None
        if matched is None or cluster is None:
            return None
        driver, options = cluster
        contact = await driver.ask("contact", name=matched[2], hold=False)
        if contact is None or not contact["node"].startswith(matched[1]):
            return None
        return RayHost(driver, matched[2], contact, options=options)

    async def _places(self) -> list[str]:
        cluster = await self._cluster()
        if cluster is None:
            return []
        driver, _ = cluster
        found: list[str] = await driver.ask("list")
        places = await asyncio.gather(*(self._place_of(driver, name) for name in found))
        return [place for place in places if place is not None]

    async def _place_of(self, driver: DriverClient, actor: str) -> str | None:
        """The place of an actor; None while it waits for resources or is about to end."""
        try:
            async with asyncio.timeout(_REPEAT):
                contact = await driver.ask("contact", name=actor, hold=False)
        except (ProviderError, TimeoutError):
            return None
        return None if contact is None else f"{contact['node'][:_NODE_SHOWN]}.{actor}"


class _WaitReporter:
    """Reports that a request is waiting: on the terminal at once, in the log from time to time."""

    def __init__(self, wants: ResourceRequest) -> None:
        self._wants = wants
        self._phase = current_phase()
        self._logged_at = -_REPEAT
        self.last = ""

    def report(self, seen: Mapping[str, Any]) -> None:
        """Report the state of the request."""
        words = describe_waiting(self._wants, seen)
        if self._phase is not None:
            self._phase.say(words)
        now = time.monotonic()
        if words != STARTING and words != self.last and now > self._logged_at + _REPEAT:
            self._logged_at = now
            logger.warning("%s", words)
        self.last = words


async def _give_up(driver: DriverClient, actor: str) -> None:
    try:
        await driver.ask("end", name=actor, gently=False)
    except SeerError as error:
        logger.warning("a request could not be removed from Ray's queue: %s", error)


def make_certificate() -> tuple[str, str]:
    """A new self-signed certificate for one actor, and its private key, both in PEM.

    The controller makes the certificate, and accepts no other certificate from that actor.
    """
    # Imported here, because a cold import takes longer than a small machine's start.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "seer")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _CERTIFICATE_LIFE)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM).decode(), private.decode()
