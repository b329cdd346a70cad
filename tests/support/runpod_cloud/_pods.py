"""Pods: containers of this host with an SSH server, rented by the hour."""

import asyncio
import contextlib
import secrets
import shlex
import socket
import string
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.support.containers import Container, ContainerSpec, Layer, LayerStore
from tests.support.containers.errors import ContainerError
from tests.support.ports import reserve_port
from tests.support.runpod_cloud._graphql import Json, QueryError

_ALPHABET = string.ascii_lowercase + string.digits
_POLL = 0.05
NO_INSTANCES = (
    "There are no longer any instances available with the requested specifications. "
    "Please refresh and try again."
)
_MAPPED = (
    '#!/bin/sh\nexec /usr/sbin/sshd -o ListenAddress=127.0.0.1 -p "$RUNPOD_TCP_PORT_22" "$@"\n'
)


@dataclass(frozen=True)
class GpuType:
    """A GPU that can be rented."""

    id: str
    display_name: str
    memory: int
    secure_price: float
    community_price: float

    def describe(self, count: int, *, stock: bool) -> dict[str, Json]:
        """As the API tells it."""
        return {
            "id": self.id,
            "displayName": self.display_name,
            "memoryInGb": self.memory,
            "maxGpuCount": 8,
            "secureCloud": True,
            "communityCloud": True,
            "securePrice": self.secure_price,
            "communityPrice": self.community_price,
            "lowestPrice": {
                "uninterruptablePrice": self.community_price if stock else None,
                "minimumBidPrice": self.community_price / 2 if stock else None,
                "stockStatus": "High" if stock else None,
            },
        }


GPUS = (
    GpuType("NVIDIA A40", "A40", 48, 0.40, 0.35),
    GpuType("NVIDIA A100 80GB PCIe", "A100 PCIe", 80, 1.39, 1.19),
    GpuType("NVIDIA A100-SXM4-80GB", "A100 SXM", 80, 1.49, 1.39),
    GpuType("NVIDIA H100 80GB HBM3", "H100 SXM", 80, 3.49, 2.69),
    GpuType("NVIDIA H100 PCIe", "H100 PCIe", 80, 2.89, 1.99),
    GpuType("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 0.69, 0.34),
    GpuType("NVIDIA L40S", "L40S", 48, 0.86, 0.79),
)


@dataclass
class Faults:
    """What goes wrong, until the test sets it right again. May be changed at any time."""

    capacity: bool = True
    """Whether there are instances."""
    balance: bool = True
    """Whether the account has money left."""
    key_revoked: bool = False
    outage: bool = False
    """Whether every request is answered with HTTP 503."""
    slow_start: float = 0.0
    """Seconds between a pod's creation and its container."""


@dataclass
class Pod:
    """One pod; it stays known after its end."""

    id: str
    request: dict[str, Json]
    gpu: GpuType | None
    price: float
    key: str
    held: socket.socket
    """Keeps its port for it, also while its SSH server is not there yet or starts again."""
    port: int
    created: float = field(default_factory=time.time)
    started: float = 0.0
    status: str = "RUNNING"
    container: Container | None = None
    wish: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def gpus(self) -> list[str]:
        """The names of its GPUs."""
        count = self.request.get("gpuCount")
        return [self.gpu.id] * count if self.gpu is not None and isinstance(count, int) else []

    def describe(self) -> dict[str, Json]:
        """As the API tells it."""
        env = self.request.get("env")
        listed = env if isinstance(env, list) else []
        pairs = [f"{item['key']}={item['value']}" for item in listed if isinstance(item, dict)]
        port: dict[str, Json] = {
            "ip": "127.0.0.1",
            "isIpPublic": True,
            "privatePort": 22,
            "publicPort": self.port,
            "type": "tcp",
        }
        up = self.container is not None and not self.container.ended.done()
        runtime: dict[str, Json] = {
            "uptimeInSeconds": int(time.time() - self.started),
            "ports": [port],
        }
        moment = datetime.fromtimestamp(self.created, UTC)
        return {
            "id": self.id,
            "name": self.request.get("name"),
            "imageName": self.request.get("imageName"),
            "desiredStatus": self.status,
            "costPerHr": self.price,
            "gpuCount": self.request.get("gpuCount") or 0,
            "env": [*pairs],
            "createdAt": moment.strftime("%Y-%m-%d %H:%M:%S.%f +0000 UTC"),
            "lastStatusChange": "Rented by User",
            "machineId": "loopback",
            "machine": {
                "podHostId": f"{self.id}-64410000",
                "gpuDisplayName": self.gpu.display_name if self.gpu is not None else None,
            },
            "runtime": runtime if up else None,
        }


class Pods:
    """All pods of the cloud."""

    def __init__(self, store: LayerStore, image: Layer, *, folder: Path, faults: Faults) -> None:
        self._store = store
        self._image = image
        self._folder = folder
        self._faults = faults
        self._tasks: set[asyncio.Task[None]] = set()
        self.by_id: dict[str, Pod] = {}
        self.url = ""
        """The API's own address, for pods."""

    def running(self) -> list[Pod]:
        """Those that are still paid for."""
        return [pod for pod in self.by_id.values() if pod.status != "TERMINATED"]

    def create(self, request: dict[str, Json]) -> Pod:
        """Rent a pod.

        Raises:
            QueryError: RunPod refuses; the message has its words.
        """
        if not self._faults.balance:
            raise QueryError(
                "Your account balance is too low to rent this pod. Please add funds to continue."
            )
        gpu = next((gpu for gpu in GPUS if gpu.id == request.get("gpuTypeId")), None)
        if not self._faults.capacity or (gpu is None and request.get("gpuTypeId")):
            raise QueryError(NO_INSTANCES)
        count = request.get("gpuCount")
        number = count if isinstance(count, int) else 1
        secure = request.get("cloudType") == "SECURE"
        unit = 0.0 if gpu is None else gpu.secure_price if secure else gpu.community_price
        held = reserve_port()
        pod = Pod(
            "".join(secrets.choice(_ALPHABET) for _ in range(14)),
            request,
            gpu,
            unit * number if gpu is not None else 0.12,
            f"rpa_{secrets.token_hex(20)}",
            held,
            held.getsockname()[1],
        )
        self.by_id[pod.id] = pod
        task = asyncio.create_task(self._live(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pod

    async def _live(self, pod: Pod) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._faults.slow_start):
                    await pod.wish.wait()
            # A container that exits is started again, as RunPod does, until the pod is ended.
            while not pod.wish.is_set():
                await self._run(pod)
        except ContainerError:
            pod.status = "EXITED"
        finally:
            pod.held.close()
            pod.ended.set()

    async def _run(self, pod: Pod) -> None:
        env = {"RUNPOD_POD_ID": pod.id, "RUNPOD_API_KEY": pod.key, "RUNPOD_TCP_PORT_22": ""}
        env |= {"RUNPOD_TCP_PORT_22": str(pod.port), "RUNPOD_API_BASE_URL": self.url}
        wanted = pod.request.get("env")
        for item in wanted if isinstance(wanted, list) else []:
            if isinstance(item, dict):
                env[str(item["key"])] = str(item["value"])
        command = shlex.split(str(pod.request.get("dockerArgs") or "sleep infinity"))
        changes = await asyncio.to_thread(self._store.new, self._image)
        container = await Container.start(
            ContainerSpec(
                image=self._image, argv=command, env=env, hostname=pod.id, gpus=pod.gpus()
            ),
            folder=self._folder / secrets.token_hex(8),
            changes=changes,
        )
        pod.container, pod.started = container, time.time()
        drains = [asyncio.create_task(_drain(s)) for s in (container.stdout, container.stderr)]
        try:
            wish = asyncio.create_task(pod.wish.wait())
            await asyncio.wait({wish, container.ended}, return_when=asyncio.FIRST_COMPLETED)
            wish.cancel()
            if not pod.wish.is_set():
                await asyncio.sleep(_POLL)
        finally:
            with contextlib.suppress(ProcessLookupError):
                await container.end()
            await asyncio.gather(*drains, return_exceptions=True)
            await asyncio.to_thread(self._store.remove, changes)

    def end(self, pod_id: str) -> Pod:
        """End a pod.

        Raises:
            QueryError: There is none.
        """
        pod = self.by_id.get(pod_id)
        if pod is None or pod.status == "TERMINATED":
            raise QueryError("Pod not found")
        pod.status = "TERMINATED"
        pod.wish.set()
        return pod

    async def close(self) -> None:
        """End all of them."""
        for pod in self.running():
            self.end(pod.id)
        await asyncio.gather(*self._tasks, return_exceptions=True)


def map_ssh_port(image: Layer) -> None:
    """Have an image's SSH server listen where RunPod's port mapping would lead to port 22."""
    program = image.folder / "usr" / "local" / "sbin" / "sshd"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(_MAPPED)
    program.chmod(0o755)


async def _drain(stream: asyncio.StreamReader) -> None:
    # Otherwise the first program would block once its output fills a pipe.
    while await stream.read(65536):
        pass
