"""Attempts as tasks on a Ray cluster: sent, followed, and what came of them brought home.

Ray decides where a task runs; it never repeats one, since the sweep's own policy does. What runs
on a node is `_node.work`; this is the sweep's side of it.
"""

import asyncio
import contextlib
import functools
import hashlib
import io
import json
import logging
import secrets
import tarfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from seer.errors import ConfigError, ProviderError, RecordError
from seer.sweeps import _node, _trees
from seer.sweeps._place import GRACE, GUARD, Began, Ended, Order, ended, to_its_end

logger = logging.getLogger(__name__)

_SOURCE_LIMIT = 100 << 20
"""Bytes of an experiment that are sent to nodes."""


class Tasks:
    """A sweep's tasks on one cluster."""

    def __init__(
        self, ray: Any, options: Mapping[str, Any], *, source: Path, folder: Path, limit: int
    ) -> None:
        """Make ready.

        Args:
            ray: The package, connected.
            options: What a task takes, as `ray.remote` has it.
            source: The experiment's folder.
            folder: The sweep's folder.
            limit: Bytes that an attempt's folder may have to be brought back.
        """
        self._ray = ray
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
            "limit": limit,
        }
        for module in (_node, _trees):
            # By value: a node may have another version of Seer, or none.
            ray.cloudpickle.register_pickle_by_value(module)
        self._work = ray.remote(
            max_retries=0, num_returns="streaming", scheduling_strategy="SPREAD", **options
        )(_node.work)

    async def __call__(self, order: Order, began: Began) -> Ended:
        """Run an attempt; see `Runner`."""
        sent = order.to_guard()
        # A program that uses Ray itself should find this cluster.
        sent["env"] = {"RAY_ADDRESS": self._address, **sent["env"]}
        try:
            stream = self._work.options(name=f"sweep {order.home.parent.name}").remote(
                {"order": sent, **self._common}
            )
        except self._ray.exceptions.RayError as error:
            raise ProviderError(f"the cluster takes no task: {_first_line(error)}") from error
        attempt = _Following(order.home)
        try:
            async for reference in stream:
                said = await reference
                self._check(said)
                if attempt.take(said, functools.partial(self._name, said)):
                    began(attempt.where)
            return await attempt.finish()
        except self._ray.exceptions.OutOfMemoryError as error:
            return Ended(outcome="crashed", where=attempt.where, error=_first_line(error))
        except self._ray.exceptions.RayError as error:
            # One that had not begun yet said nothing of its node, but Ray does.
            where = attempt.where or self._named_in(str(error))
            return Ended(outcome="lost", where=where, error=_first_line(error))
        except BaseException:
            # Cancelled, or nothing can be written here any more: it would run for nobody.
            await to_its_end(self._cancel(stream))
            raise
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

    def _named_in(self, words: str) -> str:
        """The node of which Ray speaks, as where an attempt was; empty for none."""
        nodes: list[str] = [node["NodeID"] for node in self._ray.nodes()]
        return next((f"{self._name({'node': node})}:-" for node in nodes if node in words), "")

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
