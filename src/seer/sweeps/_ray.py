"""A Ray cluster as a place for attempts: what one asks of it, and the connection to it.

Ray is imported when a sweep is opened on it, not before. The attempts themselves are `_tasks`'.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seer._transient import TransientFolder
from seer.errors import ConfigError, MissingExtraError, ProviderError
from seer.sweeps._place import Runner, to_its_end
from seer.sweeps._tasks import Tasks

logger = logging.getLogger(__name__)

_PATIENCE = 15.0
"""Seconds to wait for an answer from a cluster's address."""


@dataclass(frozen=True, kw_only=True)
class Ray:
    """A Ray cluster: each attempt is a task, on whichever node has room."""

    address: str | None = None
    """Such as `10.0.0.1:6379`, or `auto` for the cluster that this machine belongs to. By default
    `RAY_ADDRESS`; without that, Ray is started on this machine for as long as the sweep runs."""
    cpus: float = 1.0
    gpus: float = 0.0
    memory: int | None = None
    """Bytes. Like CPUs and GPUs: what an attempt takes of a node, by which Ray finds room."""
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    """Custom resources of the cluster's nodes, such as `{"fast-disk": 1}`."""
    source: str | Path | None = None
    """The folder that nodes get which do not have it; by default that of the program."""
    limit: int = 256 << 20
    """Bytes that an attempt's folder may have to be brought back from a node."""

    def __post_init__(self) -> None:
        for name in ("cpus", "gpus"):
            value = getattr(self, name)
            if isinstance(value, bool) or not 0 <= value < float("inf"):
                raise ConfigError(f"Ray.{name}", value, "must be a number, 0 or more")
        for name in ("memory", "limit"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value <= 0):
                raise ConfigError(f"Ray.{name}", value, "must be a number of bytes")
        _refuse_client(self.address or "")

    @asynccontextmanager
    async def opened(self, program: Path, folder: Path) -> AsyncGenerator[Runner]:
        """See `Place`."""
        source = self._source(program)
        # Ray's own calls block, some for seconds.
        connection = _connected(self)
        ray = await asyncio.to_thread(connection.__enter__)
        try:
            runner = await asyncio.to_thread(self._tasks, ray, source, folder)
            yield runner
        finally:
            await to_its_end(asyncio.to_thread(connection.__exit__, None, None, None))

    def _source(self, program: Path) -> Path:
        source = program.parent if self.source is None else Path(self.source).absolute()
        if not program.is_relative_to(source):
            raise ConfigError("Ray.source", str(source), f"the program {program} is not in it")
        return source

    def _tasks(self, ray: Any, source: Path, folder: Path) -> Tasks:
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory or 0, **self.resources}
        needs = {name: amount for name, amount in asked.items() if amount}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(_fits(needs, node) for node in nodes):
            logger.warning("no node of the cluster has %s; attempts wait until one joins", needs)
        options: dict[str, Any] = {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "resources": dict(self.resources),
            **({"memory": self.memory} if self.memory else {}),
        }
        return Tasks(ray, options, source=source, folder=folder, limit=self.limit)


def _fits(needs: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0) >= amount for name, amount in needs.items())


@contextlib.contextmanager
def _connected(place: Ray) -> Generator[Any]:
    """Ray, connected; as it was before, afterwards."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            "sweeps on Ray need it; run: pip install 'seer-interp[ray]'"
        ) from error
    address = place.address or os.environ.get("RAY_ADDRESS") or "local"
    _refuse_client(address)
    if ray.is_initialized():
        current = ray.get_runtime_context().gcs_address
        if address not in ("auto", "local", current):
            raise ConfigError(
                "Ray.address", address, f"this process is connected to another cluster, {current}"
            )
        yield ray
        return
    _reach(address)
    with contextlib.ExitStack() as stack:
        own: dict[str, Any] = {}
        if address == "local":
            # Where temporary files are: the addresses of Ray's sockets have 107 bytes.
            files = stack.enter_context(TransientFolder("ray"))
            own = {"include_dashboard": False, "_temp_dir": str(files)}
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ProviderError(f"Ray at {address!r} cannot be reached: {error}") from error
        stack.callback(ray.shutdown)
        yield ray


def _refuse_client(address: str) -> None:
    if address.startswith("ray://"):
        raise ConfigError(
            "Ray.address",
            address,
            "a sweep cannot run through Ray's client; start it on a node of the cluster, with the "
            "address 'auto'",
        )


def _reach(address: str) -> None:
    """Find out in seconds what Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise ProviderError(f"Ray at {address!r} cannot be reached: {error}") from error
