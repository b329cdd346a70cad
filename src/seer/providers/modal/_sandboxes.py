"""Create, find and list Modal's sandboxes."""

import asyncio
import contextlib
import logging
import secrets
import sys
import time
from collections.abc import Sequence

import modal
import modal.exception

from seer.errors import (
    CapacityError,
    HostUnreachableError,
    ImageBuildError,
    PreemptedError,
    ProviderError,
    SandboxLostError,
    SandboxNotFoundError,
    visible,
)
from seer.providers._gpus import spelled_by
from seer.providers._spec import MachineSpec
from seer.providers.modal._errors import translated
from seer.providers.modal._options import MOST_SECONDS, ModalOptions
from seer.providers.modal._prices import GPUS, price_per_second
from seer.providers.rented._host import CACHE, monitor_settings, monitor_source
from seer.providers.rented._rental import Rental, reason_of

logger = logging.getLogger(__name__)

TAG = "seer"
_GRACE = 60
"""Seconds by which Modal's time limit exceeds Seer's."""
_LOG_TAIL = 4000
_END_PATIENCE = 60.0
SAY_EVERY = 10.0
"""Seconds between two messages while waiting for a machine."""
_TIMED_OUT, _TERMINATED = 124, 137
"""The SDK's return codes for sandboxes that Modal ended."""


class ModalRental(Rental):
    """A Modal sandbox."""

    def __init__(self, sandbox: modal.Sandbox, price: float | None) -> None:
        self.id: str = sandbox.object_id
        self.price = price
        self.sandbox = sandbox
        self._ended_by_us = False

    async def lost(self) -> SandboxLostError | None:
        """How it ended; None while it exists."""
        with translated():
            code: int | None = await self.sandbox.poll.aio()
        if code is None:
            return None
        reason = reason_of(code)
        if reason is not None:
            return SandboxLostError(reason)
        if code == _TIMED_OUT:
            return SandboxLostError("its timeout passed (Modal's own limit)")
        if code == _TERMINATED and self._ended_by_us:
            return SandboxLostError("terminated")
        if code == _TERMINATED:
            return PreemptedError(
                "terminated by Modal or from its dashboard (preempted, or stopped by a person); "
                "start again"
            )
        return SandboxLostError(f"its first process ended with exit code {code}")

    async def gone(self, patience: float) -> bool:
        """Wait at most `patience` seconds for it to end. Returns whether it has."""
        try:
            with translated():
                async with asyncio.timeout(patience):
                    await self.sandbox.wait.aio(raise_on_termination=False)  # pyright: ignore[reportUnknownMemberType]
        except (TimeoutError, HostUnreachableError):
            return False
        except SandboxLostError:
            return True
        return True

    async def end(self) -> None:
        """End it, and wait until Modal confirms."""
        if await self.lost() is not None:
            return
        self._ended_by_us = True
        with translated():
            await self.sandbox.terminate.aio()
            async with asyncio.timeout(_END_PATIENCE):
                await self.sandbox.wait.aio(raise_on_termination=False)  # pyright: ignore[reportUnknownMemberType]


async def app_of(options: ModalOptions) -> modal.App:
    """The app of the sandboxes, created if it does not exist."""
    with translated():
        return await modal.App.lookup.aio(
            options.app, create_if_missing=True, environment_name=options.environment
        )


async def create(
    spec: MachineSpec, options: ModalOptions, *, purpose: str, patience: float
) -> ModalRental:
    """Create a sandbox whose first process is the rental monitor.

    Args:
        spec: The machine to run in it.
        options: Options that only Modal has.
        purpose: Its tag in listings: `machine` or `preparation`.
        patience: Seconds to wait for a machine, once the image is built.

    Raises:
        ProviderError: With Modal's message about credentials, quota, capacity, GPU or image.
    """
    began = time.monotonic()
    app = await app_of(options)
    volumes = _volumes(options)
    try:
        with translated():
            image, _ = await asyncio.gather(
                image_for(spec, options).build.aio(app),
                asyncio.gather(*(volume.hydrate.aio() for volume in volumes.values())),
            )
    except ImageBuildError as error:
        raise await _with_log(error) from error.__cause__
    price = price_per_second(spec.gpu, spec.gpu_count, cores=spec.cpus, memory=spec.memory)
    creation = secrets.token_hex(8)
    tags = {TAG: purpose, "label": spec.label[:60], "creation": creation}
    if price is not None:
        tags["price"] = repr(price)
    creating = asyncio.create_task(_create(spec, options, app, image, volumes, tags))
    try:
        sandbox = await _when_placed(creating, spec, patience)
    except BaseException:
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        # The SDK ends a sandbox that it is waiting for, but not one that it is creating.
        await asyncio.shield(_end_tagged(app, {"creation": creation}))
        raise
    logger.info("Modal sandbox %s: %.1f s", sandbox.object_id, time.monotonic() - began)
    return ModalRental(sandbox, price)


async def _end_tagged(app: modal.App, tags: dict[str, str]) -> None:
    try:
        with translated():
            async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, tags=tags):
                await sandbox.terminate.aio()
    except ProviderError as error:
        logger.warning(
            "a half-created Modal sandbox was not ended, and ends by itself: %s",
            error,
        )


async def _when_placed(
    creating: "asyncio.Task[modal.Sandbox]", spec: MachineSpec, patience: float
) -> modal.Sandbox:
    """Wait for a machine, and log while waiting."""
    began = time.monotonic()
    while True:
        left = patience - (time.monotonic() - began)
        await asyncio.wait({creating}, timeout=max(min(SAY_EVERY, left), 0))
        if creating.done():
            return creating.result()
        waited = time.monotonic() - began
        if waited >= patience:
            raise CapacityError(f"Modal had no machine for gpu={spec.gpu!r} for {waited:.0f} s")
        logger.warning(
            "gpu=%r at Modal: no capacity yet; waited %.0f s, up to %.0f s more",
            spec.gpu,
            waited,
            patience - waited,
        )


def _volumes(options: ModalOptions) -> dict[str, modal.Volume]:
    if options.volume is None:
        return {}
    volume = modal.Volume.from_name(
        options.volume, create_if_missing=True, environment_name=options.environment
    )
    return {CACHE: volume}


async def _create(
    spec: MachineSpec,
    options: ModalOptions,
    app: modal.App,
    image: modal.Image,
    volumes: dict[str, modal.Volume],
    tags: dict[str, str],
) -> modal.Sandbox:
    # The keeper ends a machine at its timeout. The rental monitor and Modal are fallbacks.
    life = int(spec.timeout + spec.start_timeout) if spec.timeout else MOST_SECONDS
    life = min(life, MOST_SECONDS - _GRACE)
    with translated():
        return await modal.Sandbox.create.aio(  # pyright: ignore[reportUnknownMemberType]
            "python3",
            "-I",
            "-S",
            "-c",
            monitor_source(),
            monitor_settings(spec.lease, lifetime=life, give_back="exit"),
            app=app,
            image=image,
            gpu=_gpu(spec),
            cpu=spec.cpus,
            memory=spec.memory >> 20 if spec.memory else None,
            timeout=life + _GRACE,
            block_network=spec.network == "none",
            outbound_domain_allowlist=_domains(spec),
            volumes=volumes,  # pyright: ignore[reportArgumentType]
            secrets=[
                modal.Secret.from_name(
                    name, required_keys=list(keys), environment_name=options.environment
                )
                for name, keys in _secrets(spec, options).items()
            ],
            region=options.region,
            cloud=options.cloud,
            tags=tags,
        )


def _secrets(spec: MachineSpec, options: ModalOptions) -> dict[str, tuple[str, ...]]:
    """Modal's secrets for a sandbox, each with the variables that it must have."""
    return {**dict.fromkeys(spec.kept_secrets, ()), **options.secrets}


async def kept_secrets(names: Sequence[str], options: ModalOptions) -> tuple[str, ...]:
    """The names that are secrets of this account."""
    found: list[str] = []
    with translated():
        for name in names:
            with contextlib.suppress(modal.exception.NotFoundError):
                secret = modal.Secret.from_name(name, environment_name=options.environment)
                await secret.hydrate.aio()
                found.append(name)
    return tuple(found)


async def _with_log(error: ImageBuildError) -> ImageBuildError:
    image_id = str(getattr(error.__cause__, "image_id", ""))
    if not image_id:
        return error
    with translated():
        log = await build_log(image_id, most=_LOG_TAIL)
    for line in log.splitlines():
        logger.warning("image %s: %s", image_id, visible(line))
    return ImageBuildError(f"{error}\n{log}")


def _gpu(spec: MachineSpec) -> str | None:
    if spec.gpu is None:
        return None
    name = spelled_by(spec.gpu, GPUS)
    return name if spec.gpu_count == 1 else f"{name}:{spec.gpu_count}"


def _domains(spec: MachineSpec) -> Sequence[str] | None:
    return None if isinstance(spec.network, str) else list(spec.network)


async def find(sandbox_id: str) -> ModalRental:
    """Find a sandbox by Modal's id.

    Raises:
        SandboxNotFoundError: Modal has no such sandbox.
    """
    try:
        with translated():
            sandbox = await modal.Sandbox.from_id.aio(sandbox_id)
            tags = await sandbox.get_tags.aio()
    except SandboxLostError as error:
        raise SandboxNotFoundError(str(error)) from error
    return ModalRental(sandbox, float(tags["price"]) if "price" in tags else None)


async def running(options: ModalOptions) -> list[ModalRental]:
    """All sandboxes of the app that hold a machine."""
    app = await app_of(options)
    found: list[ModalRental] = []
    with translated():
        async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, tags={TAG: "machine"}):
            found.append(ModalRental(sandbox, None))
    return found


_TOOLS = ("git",)
"""The packages that preparation needs besides Python."""


def image_for(spec: MachineSpec, options: ModalOptions) -> modal.Image:
    """Describe the image; nothing is built before a sandbox needs it."""
    version = spec.python_version or f"{sys.version_info.major}.{sys.version_info.minor}"
    if options.image is not None:
        base = modal.Image.from_registry(  # pyright: ignore[reportUnknownMemberType]
            options.image, add_python=version
        )
    else:
        base = modal.Image.debian_slim(python_version=version)
    return base.apt_install(*_TOOLS, *spec.system_packages)


async def build_log(image_id: str, *, most: int) -> str:
    """The end of an image's build log; empty if there is none."""
    text = ""
    async for entry in modal.Image.from_id(image_id).logs.fetch.aio():
        text = (text + entry.message)[-most:]
    return text.strip()
