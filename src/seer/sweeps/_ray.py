"""A Ray cluster as the executor of a sweep: the connection, and one task per attempt.

Ray is imported when a sweep opens the executor. Ray decides where a task runs, and never repeats
one, because the sweep has its own retry policy. `_ray_worker.py` is the part that runs on a node.
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
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seer._transient import TransientFolder
from seer.errors import ConfigError, MissingExtraError, ProviderError, RecordError
from seer.sweeps import _archive, _ray_worker
from seer.sweeps._executor import (
    GRACE,
    SUPERVISOR,
    AttemptSpec,
    Began,
    Ended,
    Runner,
    ended,
    finish_uncancelled,
)

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 15.0
"""Seconds to wait for a connection to a cluster's address."""
_SOURCE_LIMIT = 100 << 20
"""Bytes of an experiment that are sent to nodes."""


@dataclass(frozen=True, kw_only=True)
class Ray:
    """A Ray cluster. Each attempt is a task, on a node that has enough free resources."""

    address: str | None = None
    """For example `10.0.0.1:6379`, or `auto` for the cluster that this machine belongs to. The
    default is `RAY_ADDRESS`. Without that, the sweep starts Ray on this machine and ends it."""
    cpus: float = 1.0
    gpus: float = 0.0
    memory: int | None = None
    """Bytes. An attempt reserves this on its node, as it reserves CPUs and GPUs."""
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    """Custom resources of the cluster's nodes, such as `{"fast-disk": 1}`."""
    source: str | Path | None = None
    """The folder that is copied to nodes without it; by default the program's folder."""
    limit: int = 256 << 20
    """The largest folder of an attempt, in bytes, that is copied back from a node."""

    def __post_init__(self) -> None:
        for name in ("cpus", "gpus"):
            value = getattr(self, name)
            if isinstance(value, bool) or not 0 <= value < float("inf"):
                raise ConfigError(f"Ray.{name}", value, "must be a number, 0 or more")
        for name in ("memory", "limit"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value <= 0):
                raise ConfigError(f"Ray.{name}", value, "must be a positive number of bytes")
        _refuse_client(self.address or "")

    @asynccontextmanager
    async def opened(self, program: Path, folder: Path) -> AsyncGenerator[Runner]:
        """See `Executor`."""
        source = self._source(program)
        # Ray's own calls block, some for seconds.
        connection = _connected(self)
        ray = await asyncio.to_thread(connection.__enter__)
        try:
            runner = await asyncio.to_thread(self._tasks, ray, source, folder)
            yield runner
        finally:
            await finish_uncancelled(asyncio.to_thread(connection.__exit__, None, None, None))

    def _source(self, program: Path) -> Path:
        source = program.parent if self.source is None else Path(self.source).absolute()
        if not program.is_relative_to(source):
            raise ConfigError("Ray.source", str(source), f"does not contain the program {program}")
        return source

    def _tasks(self, ray: Any, source: Path, folder: Path) -> "_Tasks":
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory or 0, **self.resources}
        needs = {name: amount for name, amount in asked.items() if amount}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(_fits(needs, node) for node in nodes):
            logger.warning("no node of the cluster has %s; attempts wait for such a node", needs)
        options: dict[str, Any] = {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "resources": dict(self.resources),
            **({"memory": self.memory} if self.memory else {}),
        }
        return _Tasks(ray, options, source=source, folder=folder, limit=self.limit)


def _fits(needs: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0) >= amount for name, amount in needs.items())


@contextlib.contextmanager
def _connected(executor: Ray) -> Generator[Any]:
    """Connect to Ray if this process is not connected yet, and disconnect afterwards."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            "Ray is not installed; run: pip install 'seer-interp[ray]'"
        ) from error
    address = executor.address or os.environ.get("RAY_ADDRESS") or "local"
    _refuse_client(address)
    if ray.is_initialized():
        current = ray.get_runtime_context().gcs_address
        if address not in ("auto", "local", current):
            raise ConfigError(
                "Ray.address",
                address,
                f"is not the cluster that this process is connected to, {current}",
            )
        yield ray
        return
    _check_reachable(address)
    with contextlib.ExitStack() as stack:
        own: dict[str, Any] = {}
        if address == "local":
            # A short path: the address of a Unix socket has at most 107 bytes.
            files = stack.enter_context(TransientFolder("ray"))
            own = {"include_dashboard": False, "_temp_dir": str(files)}
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ProviderError(f"could not reach Ray at {address!r}: {error}") from error
        stack.callback(ray.shutdown)
        yield ray


def _refuse_client(address: str) -> None:
    if address.startswith("ray://"):
        raise ConfigError(
            "Ray.address",
            address,
            "is an address of Ray's client, which cannot run sweeps; start the sweep on a node of "
            "the cluster, with the address 'auto'",
        )


def _check_reachable(address: str) -> None:
    """Fail within seconds if nothing listens at the address; Ray itself retries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ProviderError(f"could not reach Ray at {address!r}: {error}") from error


class _Tasks:
    """The tasks of one sweep on one cluster. It is the `Runner` of `Ray`."""

    def __init__(
        self, ray: Any, options: Mapping[str, Any], *, source: Path, folder: Path, limit: int
    ) -> None:
        """Pack the experiment and register the worker's code with Ray.

        Args:
            ray: The package, connected.
            options: The resources of a task, as `ray.remote` takes them.
            source: The experiment's folder.
            folder: The sweep's folder.
            limit: The largest folder of an attempt, in bytes, that is copied back.
        """
        self._ray = ray
        self._source = source
        self._address: str = ray.get_runtime_context().gcs_address
        self._names: dict[str, str] = {}
        token = secrets.token_hex(16)
        (folder / "token").write_text(token)
        manifest, archive = _packed(source)
        self._common = {
            "supervisor": SUPERVISOR.read_text(),
            "folder": str(folder),
            "token": token,
            "source": str(source),
            "manifest": manifest,
            "digest": hashlib.sha256(json.dumps(manifest).encode()).hexdigest()[:32],
            "archive": [] if archive is None else [ray.put(archive)],
            "limit": limit,
        }
        for module in (_ray_worker, _archive):
            # Sent by value, because a node may have another version of Seer or none.
            ray.cloudpickle.register_pickle_by_value(module)
        self._work = ray.remote(
            max_retries=0, num_returns="streaming", scheduling_strategy="SPREAD", **options
        )(_ray_worker.work)

    async def __call__(self, spec: AttemptSpec, began: Began) -> Ended:
        """Run an attempt; see `Runner`."""
        sent = spec.to_supervisor()
        # A program that itself uses Ray should find this cluster.
        sent["env"] = {"RAY_ADDRESS": self._address, **sent["env"]}
        try:
            stream = self._work.options(name=f"sweep {spec.home.parent.name}").remote(
                {"spec": sent, **self._common}
            )
        except self._ray.exceptions.RayError as error:
            raise ProviderError(f"the cluster refused a task: {_first_line(error)}") from error
        attempt = _TaskOutput(spec.home)
        try:
            async for reference in stream:
                message = await reference
                self._check(message)
                if attempt.take(message, functools.partial(self._name, message)):
                    began(attempt.where)
            return await attempt.finish()
        except self._ray.exceptions.OutOfMemoryError as error:
            return Ended(outcome="crashed", where=attempt.where, error=_first_line(error))
        except self._ray.exceptions.RayError as error:
            # A task that had not begun did not report its node, but Ray's message names it.
            where = attempt.where or self._named_in(str(error))
            return Ended(outcome="lost", where=where, error=_first_line(error))
        except BaseException:
            # The sweep was cancelled or cannot write its folder, so nothing needs the result.
            await finish_uncancelled(self._cancel(stream))
            raise
        finally:
            attempt.close()

    def _check(self, message: Mapping[str, Any] | bytes) -> None:
        if not isinstance(message, bytes) and "refused" in message:
            raise ConfigError(
                "Ray.source",
                str(self._source),
                f"cannot be used on the node {self._name(message)}: {message['refused']}; copy the "
                "folder to the node, or move large files out of it",
            )

    def _named_in(self, text: str) -> str:
        """The node that Ray's message names, as `Attempt.where` writes it; empty if none."""
        nodes: list[str] = [node["NodeID"] for node in self._ray.nodes()]
        return next((f"{self._name({'node': node})}:-" for node in nodes if node in text), "")

    def _name(self, message: Mapping[str, Any] | bytes) -> str:
        """The name of the node that sent a message."""
        assert not isinstance(message, bytes)
        node: str = message["node"]
        if node not in self._names:
            known = {found["NodeID"]: found for found in self._ray.nodes()}[node]
            name: str = known["NodeName"]
            if name == known["NodeManagerAddress"]:
                name = known["NodeManagerHostname"]
            # Several nodes may be on one host.
            self._names[node] = f"{name}/{node[:8]}"
        return self._names[node]

    async def _cancel(self, stream: Any) -> None:
        """Interrupt a task. After the grace period, kill its worker; the supervisor then stops."""
        self._ray.cancel(stream)
        try:
            async with asyncio.timeout(GRACE + 10):
                async for reference in stream:
                    await reference
        except TimeoutError:
            self._ray.cancel(stream, force=True)
        except self._ray.exceptions.RayError as error:
            logger.debug("a task was cancelled: %s", error)


class _TaskOutput:
    """The messages that one task has sent so far."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._report: dict[str, Any] | None = None
        self._too_large = ""
        self._archive: io.BufferedWriter | None = None
        self.where = ""

    def take(self, message: dict[str, Any] | bytes, name: Any) -> bool:
        """Take a message of the task. Returns whether it says that the program has started."""
        if isinstance(message, bytes):
            with _writing(self._home):
                if self._archive is None:
                    self._packed.parent.mkdir(parents=True, exist_ok=True)
                    self._archive = self._packed.open("wb")
                self._archive.write(message)
        elif "pid" in message:
            self.where = f"{name()}:{message['pid']}"
            return True
        elif "too_large" in message:
            self._too_large = message["too_large"]
        else:
            self._report = message
        return False

    @property
    def _packed(self) -> Path:
        return self._home.with_name(f"{self._home.name}.tar")

    async def finish(self) -> Ended:
        """Unpack the attempt's folder, and say how the attempt ended."""
        if self._too_large:
            error = f"its folder is too large to be copied back: {self._too_large}"
            return Ended(outcome="failed", where=self.where, error=f"{error}; see Ray.limit")
        if self._archive is not None:
            with _writing(self._home):
                self._archive.close()
                try:
                    await asyncio.to_thread(_archive.unpack, self._packed, self._home)
                except tarfile.TarError as error:
                    reason = f"its folder cannot be unpacked: {error}"
                    return Ended(outcome="lost", where=self.where, error=reason)
        return ended(self._report, self.where)

    def close(self) -> None:
        """Remove the archive."""
        if self._archive is not None:
            with contextlib.suppress(OSError):
                self._archive.close()
            self._packed.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(home: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"the results of an attempt cannot be written to {str(home)!r}: {error}; free some "
            "space and run the same command again to continue"
        ) from error


def _packed(source: Path) -> tuple[_archive.Manifest, bytes | None]:
    """The files that nodes must have, and an archive of them unless they are too large."""
    files = list(_archive.source_files(source))
    packed = io.BytesIO()
    try:
        _archive.pack(source, files, packed, limit=_SOURCE_LIMIT)
    except _archive.TooLargeError as error:
        logger.warning("%s is too large to be sent to nodes that lack it: %s", source, error)
        return _archive.manifest(source, [file for file in files if file.suffix == ".py"]), None
    return _archive.manifest(source, files), packed.getvalue()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
