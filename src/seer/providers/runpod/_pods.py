"""Rent, find and list RunPod's pods."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from seer.errors import (
    CapacityError,
    PreemptedError,
    ProviderError,
    SandboxLostError,
    UnknownGpuError,
)
from seer.providers._gpus import is_kind
from seer.providers._spec import MachineSpec
from seer.providers.rented._host import CACHE, monitor_settings, monitor_source
from seer.providers.rented._rental import Rental
from seer.providers.runpod import _keys
from seer.providers.runpod._api import request
from seer.providers.runpod._options import RunPodOptions

_QUERY = """
query GpuTypes($price: GpuLowestPriceInput) {
  gpuTypes {
    id
    displayName
    memoryInGb
    securePrice
    communityPrice
    lowestPrice(input: $price) { uninterruptablePrice stockStatus }
  }
}
"""


@dataclass(frozen=True)
class GpuOffer:
    """A kind of GPU that RunPod offers."""

    id: str
    name: str
    memory: int
    price: float | None
    """US dollars per hour for one GPU; None if RunPod gives no price."""
    in_stock: bool


async def offers(count: int, *, cloud: str) -> list[GpuOffer]:
    """All kinds of GPU, with current prices."""
    data = await request(_QUERY, {"price": {"gpuCount": count}}, repeat=True)
    found = cast("list[dict[str, Any]]", data.get("gpuTypes") or [])
    return [_offer(each, cloud) for each in found]


def _offer(found: dict[str, Any], cloud: str) -> GpuOffer:
    secure, community = found.get("securePrice"), found.get("communityPrice")
    price = secure if cloud == "SECURE" else community or secure
    lowest = cast("dict[str, Any]", found.get("lowestPrice") or {})
    return GpuOffer(
        found["id"],
        found.get("displayName") or found["id"],
        found.get("memoryInGb") or 0,
        float(price) if price else None,
        bool(lowest.get("uninterruptablePrice")),
    )


def choose(wanted: str, found: Sequence[GpuOffer]) -> list[GpuOffer]:
    """The offers that match a name: those in stock first, then by price.

    RunPod's own names match exactly. `A100` matches every A100, and `A100-80GB` those with 80 GB.

    Raises:
        UnknownGpuError: There is no such GPU; the message lists RunPod's GPUs.
    """
    exact = [offer for offer in found if wanted in (offer.id, offer.name)]
    fitting = exact or [
        offer
        for offer in found
        if any(is_kind(wanted, name, memory_gib=offer.memory) for name in (offer.id, offer.name))
    ]
    if not fitting:
        names = ", ".join(sorted(offer.name for offer in found))
        raise UnknownGpuError(f"gpu={wanted!r}: RunPod has {names}")
    return sorted(fitting, key=lambda o: (not o.in_stock, o.price is None, o.price or 0.0))


logger = logging.getLogger(__name__)

PREFIX = "seer-"
"""The prefix of the names of Seer's pods."""
_PUBLIC = "SEER_HOST_PUBLIC"
_FIELDS = """
id name desiredStatus costPerHr env lastStatusChange
runtime { ports { ip isIpPublic privatePort publicPort type } }
"""
_CREATE_GPU = (
    "mutation ($input: PodFindAndDeployOnDemandInput!) "
    "{ podFindAndDeployOnDemand(input: $input) { id costPerHr } }"
)
_CREATE_CPU = (
    "mutation ($input: deployCpuPodInput!) { deployCpuPod(input: $input) { id costPerHr } }"
)
_GET = f"query ($input: PodFilter) {{ pod(input: $input) {{ {_FIELDS} }} }}"
_LIST = f"query {{ myself {{ pods {{ {_FIELDS} }} }} }}"
_TERMINATE = "mutation ($input: PodTerminateInput!) { podTerminate(input: $input) }"
_GRACE = 60.0
_POLL = 0.5
_LONGEST_POLL = 5.0
NO_RECORD = (
    "RunPod keeps no record of pods that ended: it was terminated, its timeout passed, it was idle "
    "or over a limit, or its controller was gone for longer than its lease"
)


class Pod(Rental):
    """A RunPod pod."""

    def __init__(self, pod_id: str, price: float | None) -> None:
        self.id = pod_id
        self.price = price
        self._ended_by_us = False

    async def look(self) -> dict[str, Any] | None:
        """RunPod's data about the pod; None if it has ended."""
        data = await request(_GET, {"input": {"podId": self.id}}, repeat=True)
        found: dict[str, Any] | None = data.get("pod")
        if found is None or found.get("desiredStatus") in ("TERMINATED", "EXITED"):
            return None
        return found

    async def lost(self) -> SandboxLostError | None:
        """How it ended, as far as known; None while it exists."""
        if await self.look() is not None:
            return None
        if self._ended_by_us:
            return SandboxLostError("terminated")
        return PreemptedError(NO_RECORD)

    async def gone(self, patience: float) -> bool:
        """Wait at most `patience` seconds for it to end. Returns whether it has."""
        deadline = time.monotonic() + patience
        while await self.look() is not None:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL)
        return True

    async def end(self) -> None:
        """End it, and wait until RunPod confirms."""
        self._ended_by_us = True
        try:
            await request(_TERMINATE, {"input": {"podId": self.id}}, repeat=True)
        except ProviderError:
            if await self.look() is not None:
                raise
        await asyncio.to_thread(_keys.forget, self.id)

    async def address(self, patience: float) -> tuple[str, int, str]:
        """Wait for its SSH server. Returns the address, the port and the public key.

        Raises:
            SandboxLostError: It ended.
            CapacityError: It did not start in time.
        """
        deadline = time.monotonic() + patience
        pause, said = _POLL, 0.0
        while True:
            found = await self.look()
            if found is None:
                raise SandboxLostError(f"pod {self.id} ended before its SSH server was ready")
            for port in _ports(found):
                if port["privatePort"] == 22 and port["type"] == "tcp" and port["isIpPublic"]:
                    return port["ip"], int(port["publicPort"]), _variable(found, _PUBLIC)
            left = deadline - time.monotonic()
            if left <= 0:
                raise CapacityError(
                    f"pod {self.id} was not ready within {patience:g} s; its image may be large, "
                    f"or its host slow: {found.get('lastStatusChange')}"
                )
            if time.monotonic() - said > 10:
                said = time.monotonic()
                logger.info("pod %s is starting; waiting up to %.0f s more", self.id, left)
            await asyncio.sleep(min(pause, max(left, 0.05)))
            pause = min(pause * 1.3, _LONGEST_POLL)


def _ports(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    runtime = cast("dict[str, Any]", found.get("runtime") or {})
    return cast("list[dict[str, Any]]", runtime.get("ports") or [])


def _variable(found: Mapping[str, Any], name: str) -> str:
    for pair in cast("list[str]", found.get("env") or []):
        key, _, value = pair.partition("=")
        if key == name:
            return value
    raise ProviderError(f"pod {found['id']!r} was not created by Seer: it has no {name}")


async def rent(spec: MachineSpec, options: RunPodOptions) -> Pod:
    """Rent a pod whose first program is the rental monitor.

    Raises:
        CapacityError: None of the GPUs with this name is available.
        ProviderError: With RunPod's message.
    """
    wanted = await _request_for(spec, options)
    if spec.gpu is None:
        wanted |= {"instanceId": options.cpu_instance, "cloudType": "SECURE"}
        pod = await _create(_CREATE_CPU, wanted)
        if pod is None:
            raise CapacityError(f"RunPod has no {options.cpu_instance} to rent")
        return pod
    fitting = choose(spec.gpu, await offers(spec.gpu_count, cloud=options.cloud))
    refusal: CapacityError | None = None
    for offer in fitting:
        try:
            return await _rent_gpu(wanted, offer, spec, options)
        except CapacityError as error:
            refusal = error
    names = ", ".join(offer.name for offer in fitting)
    raise CapacityError(f"{names}: {refusal}")


async def _rent_gpu(
    wanted: Mapping[str, object], offer: GpuOffer, spec: MachineSpec, options: RunPodOptions
) -> Pod:
    asked = {
        **wanted,
        "gpuTypeId": offer.id,
        "volumeInGb": 0,
        "gpuCount": spec.gpu_count,
        "cloudType": options.cloud,
        "supportPublicIp": True,
        "minVcpuCount": int(spec.cpus or 2),
        "minMemoryInGb": max((spec.memory or 0) >> 30, 8),
    }
    pod = await _create(_CREATE_GPU, asked)
    if pod is None:
        raise CapacityError(f"RunPod has no {offer.name} to rent")
    return pod


async def _create(query: str, wanted: Mapping[str, object]) -> Pod | None:
    """Request a pod. Returns None if none is available.

    If this is cancelled, it still waits for the answer and ends the new pod, because nothing else
    knows about that pod.
    """
    asking = asyncio.create_task(request(query, {"input": wanted}, repeat=False))
    try:
        return _first_of(await asyncio.shield(asking))
    except asyncio.CancelledError:
        with contextlib.suppress(ProviderError):
            pod = _first_of(await asking)
            if pod is not None:
                await pod.end()
        raise


def _first_of(answer: Mapping[str, Any]) -> Pod | None:
    found = next(iter(answer.values()), None)
    return None if found is None else _rented(found)


def _rented(found: Mapping[str, Any]) -> Pod:
    price = found.get("costPerHr")
    return Pod(found["id"], float(price) / 3600 if price else None)


async def _request_for(spec: MachineSpec, options: RunPodOptions) -> dict[str, object]:
    _, client = await asyncio.to_thread(_keys.own_key)
    host = await asyncio.to_thread(_keys.new_pair)
    # The keeper ends a machine at its timeout; this limit is a fallback.
    life = int(spec.timeout + spec.start_timeout) if spec.timeout else 0
    env = {
        "SEER_START": Path(__file__).with_name("start.sh").read_text(),
        "SEER_MONITOR": monitor_source(),
        "SEER_SETTINGS": monitor_settings(spec.lease, lifetime=life, give_back="runpod"),
        "SEER_HOST_KEY": host.private,
        _PUBLIC: host.public,
        "SEER_CLIENT_KEY": client,
        "SEER_PACKAGES": " ".join(spec.system_packages),
    }
    wanted: dict[str, object] = {
        "name": PREFIX + spec.label[:40],
        "imageName": options.image,
        "containerDiskInGb": max(options.container_disk_gb, (spec.disk or 0) >> 30),
        "ports": "22/tcp",
        "dockerArgs": "bash -c 'eval \"$SEER_START\"'",
        "startSsh": False,
        "env": [{"key": key, "value": value} for key, value in env.items()],
    }
    if options.network_volume is not None:
        wanted |= {"networkVolumeId": options.network_volume, "volumeMountPath": CACHE}
    if spec.timeout:
        # RunPod's own limit is the last fallback. It also ends a pod whose image never starts.
        end = datetime.now(UTC) + timedelta(seconds=spec.timeout + spec.start_timeout + _GRACE)
        wanted["terminateAfter"] = end.strftime("%Y-%m-%dT%H:%M:%SZ")
    if options.data_center is not None:
        wanted["dataCenterId"] = options.data_center
    return wanted


async def find(pod_id: str) -> Pod | None:
    """Find one of Seer's pods by RunPod's id; None if there is none."""
    pod = Pod(pod_id, None)
    found = await pod.look()
    if found is None or not str(found.get("name", "")).startswith(PREFIX):
        return None
    return _rented(found)


async def running() -> list[Pod]:
    """All of Seer's running pods."""
    data = await request(_LIST, {}, repeat=True)
    account = cast("dict[str, Any]", data.get("myself") or {})
    found = cast("list[dict[str, Any]]", account.get("pods") or [])
    return [
        _rented(pod)
        for pod in found
        if str(pod.get("name", "")).startswith(PREFIX) and pod.get("desiredStatus") == "RUNNING"
    ]
