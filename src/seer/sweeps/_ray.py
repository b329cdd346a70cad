"""Attempts as tasks on a Ray cluster.

Ray decides where a task runs; it never repeats one, since the sweep's own policy does. What runs
on a node is `_node.work`; this is the sweep's side: connecting, sending the experiment, following
each task, and bringing home what came of it. Ray is imported when a sweep is opened on it.
"""

import asyncio
import contextlib
import functools
import hashlib
import importlib
import io
import json
import logging
import os
import secrets
import socket
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seer.errors import ConfigError, MissingExtraError, ProviderError, RecordError
from seer.sweeps import _node, _trees
from seer.sweeps._place import GRACE, GUARD, Began, Ended, Order, Runner, ended, to_its_end

logger = logging.getLogger(__name__)

_SOURCE_LIMIT = 100 << 20
"""Bytes of an experiment that are sent to nodes."""
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
            runner = await asyncio.to_thread(_Tasks, ray, self, source, folder)
            self._warn_of_want(ray)
            yield runner
        finally:
            await to_its_end(asyncio.to_thread(connection.__exit__, None, None, None))

    def _source(self, program: Path) -> Path:
        source = program.parent if self.source is None else Path(self.source).absolute()
        if not program.is_relative_to(source):
            raise ConfigError("Ray.source", str(source), f"the program {program} is not in it")
        return source

    def needs(self) -> dict[str, float]:
        """What an attempt takes, by Ray's names."""
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory or 0, **self.resources}
        return {name: amount for name, amount in asked.items() if amount}

    def _warn_of_want(self, ray: Any) -> None:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(_fits(self.needs(), node) for node in nodes):
            logger.warning(
                "no node of the cluster has %s; attempts wait until one joins", self.needs()
            )


def _fits(needs: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0) >= amount for name, amount in needs.items())


@contextlib.contextmanager
def _connected(place: Ray) -> Generator[Any]:
    """Ray, connected; as it was before, afterwards."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError("sweeps on Ray need it; run: pip install 'seer[ray]'") from error
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
            # Short: the addresses of Ray's sockets have 107 bytes.
            files = stack.enter_context(tempfile.TemporaryDirectory(prefix="seer-ray-"))
            own = {"include_dashboard": False, "_temp_dir": files}
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


class _Tasks:
    """A sweep's tasks on one cluster."""

    def __init__(self, ray: Any, place: Ray, source: Path, folder: Path) -> None:
        self._ray = ray
        self._place = place
        self._source = source
        self._address: str = ray.get_runtime_context().gcs_address
        self._names: dict[str, str] = {}
        token = secrets.token_hex(16)
        (folder / "token").write_text(token)
        manifest, archive = _packed(source)
        self._common = {
            "guard": GUARD.read_text(),
            "folder": str(folder),
            "token": token,
            "source": str(source),
            "manifest": manifest,
            "digest": hashlib.sha256(json.dumps(manifest).encode()).hexdigest()[:32],
            "archive": [] if archive is None else [ray.put(archive)],
            "limit": place.limit,
        }
        for module in (_node, _trees):
            # By value: a node may have another version of Seer, or none.
            ray.cloudpickle.register_pickle_by_value(module)
        options: dict[str, Any] = {"memory": place.memory} if place.memory else {}
        self._work = ray.remote(
            num_cpus=place.cpus,
            num_gpus=place.gpus,
            resources=dict(place.resources),
            max_retries=0,
            num_returns="streaming",
            scheduling_strategy="SPREAD",
            **options,
        )(_node.work)

    async def __call__(self, order: Order, began: Began) -> Ended:
        """Run an attempt; see `Runner`."""
        sent = order.to_guard()
        # A program that uses Ray itself should find this cluster.
        sent["env"] = {"RAY_ADDRESS": self._address, **sent["env"]}
        stream = self._work.options(name=f"sweep {order.home.parent.name}").remote(
            {"order": sent, **self._common}
        )
        attempt = _Following(order.home)
        try:
            async for reference in stream:
                said = await reference
                self._check(said)
                if attempt.take(said, functools.partial(self._name, said)):
                    began(attempt.where)
            return await attempt.finish()
        except asyncio.CancelledError:
            await to_its_end(self._cancel(stream))
            raise
        except self._ray.exceptions.OutOfMemoryError as error:
            return Ended(outcome="crashed", where=attempt.where, error=_first_line(error))
        except self._ray.exceptions.RayError as error:
            return Ended(outcome="lost", where=attempt.where, error=_first_line(error))
        finally:
            attempt.close()

    def _check(self, said: Mapping[str, Any] | bytes) -> None:
        if not isinstance(said, bytes) and "refused" in said:
            raise ConfigError(
                "Ray.source",
                str(self._source),
                f"cannot be used on the node {self._name(said)}: {said['refused']}; put it there, "
                "or keep what is large elsewhere",
            )

    def _name(self, said: Mapping[str, Any] | bytes) -> str:
        """The name of the node that says something."""
        assert not isinstance(said, bytes)
        node: str = said["node"]
        if node not in self._names:
            known = {found["NodeID"]: found for found in self._ray.nodes()}[node]
            name: str = known["NodeName"]
            if name == known["NodeManagerAddress"]:
                name = known["NodeManagerHostname"]
            # Several nodes may be on one host.
            self._names[node] = f"{name}/{node[:8]}"
        return self._names[node]

    async def _cancel(self, stream: Any) -> None:
        """End a task: the program has its grace; then its worker goes, and the guard ends it."""
        self._ray.cancel(stream)
        try:
            async with asyncio.timeout(GRACE + 10):
                async for reference in stream:
                    await reference
        except TimeoutError:
            self._ray.cancel(stream, force=True)
        except self._ray.exceptions.RayError as error:
            logger.debug("a task was cancelled: %s", error)


class _Following:
    """What has come of one task so far."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._report: dict[str, Any] | None = None
        self._too_large = ""
        self._archive: io.BufferedWriter | None = None
        self.where = ""

    def take(self, said: dict[str, Any] | bytes, name: Any) -> bool:
        """Take in what a task says; whether this is that the program runs."""
        if isinstance(said, bytes):
            with _here_is_room(self._home):
                if self._archive is None:
                    self._packed.parent.mkdir(parents=True, exist_ok=True)
                    self._archive = self._packed.open("wb")
                self._archive.write(said)
        elif "pid" in said:
            self.where = f"{name()}:{said['pid']}"
            return True
        elif "too_large" in said:
            self._too_large = said["too_large"]
        else:
            self._report = said
        return False

    @property
    def _packed(self) -> Path:
        return self._home.with_name(f"{self._home.name}.tar")

    async def finish(self) -> Ended:
        """Unpack what came; how the attempt ended."""
        if self._too_large:
            error = f"what it left is too large to be brought back: {self._too_large}"
            return Ended(outcome="failed", where=self.where, error=f"{error}; see Ray.limit")
        if self._archive is not None:
            with _here_is_room(self._home):
                self._archive.close()
                try:
                    await asyncio.to_thread(_trees.unpack, self._packed, self._home)
                except tarfile.TarError as error:
                    reason = f"what it left cannot be unpacked: {error}"
                    return Ended(outcome="lost", where=self.where, error=reason)
        return ended(self._report, self.where)

    def close(self) -> None:
        """Remove the archive."""
        if self._archive is not None:
            with contextlib.suppress(OSError):
                self._archive.close()
            self._packed.unlink(missing_ok=True)


@contextlib.contextmanager
def _here_is_room(home: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"what came of an attempt cannot be written to {str(home)!r}: {error}; make room, and "
            "the same command goes on"
        ) from error


def _packed(source: Path) -> tuple[_trees.Manifest, bytes | None]:
    """What nodes must have, and that as an archive, unless it is too large."""
    files = list(_trees.source_files(source))
    packed = io.BytesIO()
    try:
        _trees.pack(source, files, packed, limit=_SOURCE_LIMIT)
    except _trees.TooLargeError as error:
        logger.warning("%s is not sent to nodes that do not have it: %s", source, error)
        return _trees.manifest(source, [file for file in files if file.suffix == ".py"]), None
    return _trees.manifest(source, files), packed.getvalue()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
