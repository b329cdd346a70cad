"""Sandboxes: waiting for a machine, running as a container, ended in one of Modal's ways."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.support.containers import Container, ContainerSpec, LayerStore
from tests.support.containers.errors import ContainerError
from tests.support.modal_cloud._execs import Exec
from tests.support.modal_cloud._images import Images
from tests.support.modal_cloud._state import GPUS, Account, Faults, new_id
from tests.support.modal_cloud._tunnels import Tunnels

_Result = api_pb2.GenericResult
_POLL = 0.05


@dataclass
class Sandbox:
    """One sandbox from its creation on; it stays known after its end."""

    id: str
    task_id: str
    app_id: str
    definition: api_pb2.Sandbox
    env: Mapping[str, str]
    tags: dict[str, str]
    created_at: float = field(default_factory=time.time)
    started_at: float = 0.0
    container: Container | None = None
    result: api_pb2.GenericResult | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    execs: dict[str, Exec] = field(default_factory=dict[str, Exec])
    tunnels: Tunnels = field(default_factory=Tunnels)
    wish: "asyncio.Future[api_pb2.GenericResult]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Set by whoever wants it to end, with the result that it then has."""

    def end(self, status: "_Result.GenericStatus.ValueType", words: str = "") -> None:
        """Have it end with this result, unless it has one."""
        if not self.wish.done():
            self.wish.set_result(_Result(status=status, exception=words))


class Sandboxes:
    """All sandboxes of the cloud."""

    def __init__(
        self,
        account: Account,
        images: Images,
        store: LayerStore,
        *,
        folder: Path,
        faults: Faults,
    ) -> None:
        self._account = account
        self._images = images
        self._store = store
        self._folder = folder
        self._faults = faults
        self._tasks: set[asyncio.Task[None]] = set()
        self.by_id: dict[str, Sandbox] = {}

    def running(self) -> list[Sandbox]:
        """Those that have not ended, waiting ones included; newest first."""
        found = [sandbox for sandbox in self.by_id.values() if sandbox.result is None]
        return sorted(found, key=lambda sandbox: -sandbox.created_at)

    def get(self, sandbox_id: str) -> Sandbox:
        """A sandbox by id.

        Raises:
            GRPCError: There never was one.
        """
        if sandbox_id not in self.by_id:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox with ID {sandbox_id} not found")
        return self.by_id[sandbox_id]

    def of_task(self, task_id: str) -> Sandbox:
        """The running sandbox of a task.

        Raises:
            GRPCError: There is none, or it has ended.
        """
        for sandbox in self.by_id.values():
            if sandbox.task_id == task_id:
                if sandbox.result is not None:
                    raise GRPCError(Status.FAILED_PRECONDITION, "Sandbox has already shut down")
                return sandbox
        raise GRPCError(Status.NOT_FOUND, f"Task {task_id} not found")

    def create(
        self,
        app_id: str,
        definition: api_pb2.Sandbox,
        *,
        env: Mapping[str, str],
        tags: Mapping[str, str],
        second: bool,
    ) -> Sandbox:
        """Take in a sandbox; it runs once there is a machine for it.

        Raises:
            GRPCError: It cannot run here, or the account may not have one more.
        """
        self._check(definition)
        made = Sandbox(
            new_id("sb", length=26 if second else 22),
            new_id("ta") + ("V" if second else "0"),
            app_id,
            definition,
            env,
            dict(tags),
        )
        self.by_id[made.id] = made
        task = asyncio.create_task(self._live(made))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return made

    def _check(self, definition: api_pb2.Sandbox) -> None:
        gpu = definition.resources.gpu_config
        if gpu.gpu_type and gpu.gpu_type not in GPUS:
            raise GRPCError(
                Status.INVALID_ARGUMENT,
                f"Invalid GPU type {gpu.gpu_type!r}; supported: {', '.join(sorted(GPUS))}",
            )
        if gpu.count > 8:
            raise GRPCError(Status.INVALID_ARGUMENT, f"GPU count {gpu.count} is more than 8")
        if self._faults.quota is not None and len(self.running()) >= self._faults.quota:
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED,
                f"Workspace sandbox limit of {self._faults.quota} reached",
            )
        if not 0 < definition.timeout_secs <= 24 * 3600:
            raise GRPCError(Status.INVALID_ARGUMENT, "timeout must be between 1 s and 24 hours")
        if definition.idle_timeout_secs:
            raise GRPCError(Status.UNIMPLEMENTED, "idle_timeout is not there in this cloud")
        self._images.get(definition.image_id)

    async def _live(self, sandbox: Sandbox) -> None:
        result = _Result(status=_Result.GENERIC_STATUS_INTERNAL_FAILURE)
        try:
            if await self._capacity(sandbox):
                result = await self._run(sandbox)
            else:
                result = sandbox.wish.result()
        except (ContainerError, GRPCError, OSError) as error:
            result = _Result(status=_Result.GENERIC_STATUS_INIT_FAILURE, exception=str(error))
        finally:
            await sandbox.tunnels.close()
            for running in sandbox.execs.values():
                running.lose()
            sandbox.result = result
            sandbox.ended.set()

    async def _capacity(self, sandbox: Sandbox) -> bool:
        """Wait for a machine; False if it is to end before there is one."""
        while not self._faults.capacity:
            await asyncio.wait({sandbox.wish}, timeout=_POLL)
            if sandbox.wish.done():
                return False
        return not sandbox.wish.done()

    async def _run(self, sandbox: Sandbox) -> api_pb2.GenericResult:
        definition = sandbox.definition
        image = self._images.get(definition.image_id)
        if image.layer is None:
            raise ContainerError(f"image {image.id} is not built")
        changes = await asyncio.to_thread(self._store.new, image.layer)
        gpu = definition.resources.gpu_config
        given = self._faults.gpu_given or gpu.gpu_type
        container = await Container.start(
            ContainerSpec(
                image=image.layer,
                argv=list(definition.entrypoint_args) or ["sleep", "172800"],
                env={**image.env, **sandbox.env},
                cwd=definition.workdir or image.workdir,
                volumes={
                    mount.mount_path: self._account.volume_folder(mount.volume_id)
                    for mount in definition.volume_mounts
                },
                own_network=definition.network_access.network_access_type
                == api_pb2.NetworkAccess.BLOCKED,
                hostname="modal",
                gpus=[f"NVIDIA {given}"] * gpu.count if gpu.gpu_type else [],
            ),
            folder=self._folder / sandbox.id,
            changes=changes,
        )
        sandbox.container, sandbox.started_at = container, time.time()
        drains = [asyncio.create_task(_drain(s)) for s in (container.stdout, container.stderr)]
        try:
            await sandbox.tunnels.open([spec.port for spec in definition.open_ports.ports])
            waits: set[asyncio.Future[Any]] = {container.ended, sandbox.wish}
            done, _ = await asyncio.wait(
                waits, timeout=definition.timeout_secs, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return _Result(status=_Result.GENERIC_STATUS_TIMEOUT)
            if sandbox.wish.done():
                return sandbox.wish.result()
            code = container.ended.result()
            status = _Result.GENERIC_STATUS_FAILURE if code else _Result.GENERIC_STATUS_SUCCESS
            return _Result(status=status, exitcode=code)
        finally:
            with contextlib.suppress(ProcessLookupError):
                await container.end()
            await asyncio.gather(*drains, return_exceptions=True)
            await asyncio.to_thread(self._store.remove, changes)

    def snapshot(self, sandbox: Sandbox) -> str:
        """Make an image of a running sandbox's files; its id."""
        if sandbox.container is None:
            raise GRPCError(Status.FAILED_PRECONDITION, "Sandbox is not running")
        image = self._images.get(sandbox.definition.image_id)
        return self._images.add_snapshot(sandbox.container.changes, image).id

    async def close(self) -> None:
        """End all of them."""
        for sandbox in self.running():
            sandbox.end(_Result.GENERIC_STATUS_TERMINATED)
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _drain(stream: asyncio.StreamReader) -> None:
    # Otherwise the first program would block once its output fills a pipe.
    while await stream.read(65536):
        pass
