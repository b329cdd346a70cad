"""Images: recipes in Dockerfile commands, built by running them in a container, and kept.

The base of every recipe (`FROM python:...` and the commands beside it) is this host's own system:
those commands are recorded and not run. Every layer above is built for real.
"""

import asyncio
import hashlib
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.support.containers import Container, ContainerSpec, Layer, LayerStore
from tests.support.containers.errors import ContainerError
from tests.support.modal_cloud._state import Faults, new_id

_SUCCESS = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
_FAILURE = api_pb2.GenericResult.GENERIC_STATUS_FAILURE


class BuildFailedError(Exception):
    """A command of a recipe failed."""


@dataclass
class Image:
    """One image, built or being built."""

    id: str
    commands: list[str]
    layer: Layer | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/root"
    log: list[str] = field(default_factory=list[str])
    began: float = field(default_factory=time.time)
    result: api_pb2.GenericResult | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, text: str) -> None:
        """Add to its log and wake up who follows it."""
        self.log.append(text)
        self.news.set()


class Images:
    """All images of the cloud."""

    def __init__(self, store: LayerStore, bare: Layer, folder: Path, faults: Faults) -> None:
        self._store = store
        self._bare = bare
        self._folder = folder
        self._faults = faults
        self._by_recipe: dict[bytes, Image] = {}
        self._by_id: dict[str, Image] = {}
        self._builds: set[asyncio.Task[None]] = set()
        self.builds_started = 0
        """How many were built for real; what is cached is not built again."""

    def get(self, image_id: str) -> Image:
        """An image by id.

        Raises:
            GRPCError: There is none.
        """
        if image_id not in self._by_id:
            raise GRPCError(Status.NOT_FOUND, f"Image {image_id!r} not found")
        return self._by_id[image_id]

    def get_or_create(self, recipe: api_pb2.Image, *, force: bool) -> Image:
        """The image of a recipe; building starts if it is new, or failed before."""
        key = hashlib.sha256(recipe.SerializeToString(deterministic=True)).digest()
        known = self._by_recipe.get(key)
        if (
            known is not None
            and not force
            and (known.result is None or known.result.status == _SUCCESS)
        ):
            return known
        made = Image(new_id("im"), list(recipe.dockerfile_commands))
        self._by_recipe[key] = self._by_id[made.id] = made
        task = asyncio.create_task(self._build(made, recipe))
        self._builds.add(task)
        task.add_done_callback(self._builds.discard)
        return made

    def add_snapshot(self, changes: Layer, like: Image) -> Image:
        """An image of a container's current files."""
        made = Image(new_id("im"), [f"# a snapshot of {like.id}"], env=dict(like.env))
        made.layer, made.workdir = self._store.copy(changes), like.workdir
        made.result = api_pb2.GenericResult(status=_SUCCESS)
        self._by_id[made.id] = made
        return made

    async def _build(self, image: Image, recipe: api_pb2.Image) -> None:
        try:
            if not recipe.base_images:
                image.layer = self._bare
                image.say(f"=> {image.commands[0] if image.commands else 'scratch'} (this host)\n")
            else:
                await self._build_on(self.get(recipe.base_images[0].image_id), image, recipe)
            image.result = api_pb2.GenericResult(status=_SUCCESS)
        except (BuildFailedError, ContainerError, GRPCError, OSError) as error:
            image.say(f"Terminating task due to error: {error}\n")
            image.result = api_pb2.GenericResult(status=_FAILURE, exception=str(error))
        image.news.set()

    async def _build_on(self, base: Image, image: Image, recipe: api_pb2.Image) -> None:
        self.builds_started += 1
        image.env, image.workdir = dict(base.env), base.workdir
        layer = base.layer or self._bare
        for command in image.commands:
            word, _, rest = command.strip().partition(" ")
            image.say(f"=> {command}\n")
            match word.upper():
                case "RUN":
                    layer = await self._run(layer, rest, image)
                case "ENV":
                    name, _, value = rest.replace("=", " ", 1).partition(" ")
                    image.env[name] = " ".join(shlex.split(value))
                case "WORKDIR":
                    image.workdir = rest.strip()
                case "COPY":
                    layer = await asyncio.to_thread(self._copy, layer, rest, recipe)
                case _:
                    continue
        image.layer = layer

    async def _run(self, below: Layer, script: str, image: Image) -> Layer:
        if self._faults.build_failure:
            raise BuildFailedError(self._faults.build_failure)
        changes = await asyncio.to_thread(self._store.new, below)
        spec = ContainerSpec(image=below, argv=["/bin/sh", "-c", script], env=image.env)
        container = await Container.start(
            spec, folder=self._folder / new_id("build"), changes=changes
        )

        async def follow(read: Callable[[], "asyncio.Future[bytes]"]) -> None:
            while line := await read():
                image.say(line.decode(errors="replace"))

        await asyncio.gather(
            follow(lambda: asyncio.ensure_future(container.stdout.readline())),
            follow(lambda: asyncio.ensure_future(container.stderr.readline())),
        )
        code = await container.ended
        if code != 0:
            raise BuildFailedError(f"image build command exited with status {code}: {script}")
        return changes

    def _copy(self, below: Layer, rest: str, recipe: api_pb2.Image) -> Layer:
        """Copy a recipe's own context files; other sources do not exist."""
        source, _, target = rest.strip().partition(" ")
        for file in recipe.context_files:
            if file.filename == source:
                changes = self._store.new(below)
                place = changes.folder / "root" / target.strip().lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.data)
                return changes
        raise BuildFailedError(f"COPY {rest}: {source!r} is not in the build's context")

    async def close(self) -> None:
        """Stop building."""
        for task in self._builds:
            task.cancel()
        await asyncio.gather(*self._builds, return_exceptions=True)
