"""The `local` provider: machines are jailed process trees on this host."""

import asyncio
import contextlib
import dataclasses
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seer._sockets import connect_in_thread, readable
from seer.errors import ConfigError, ProviderError, SandboxLostError, SandboxNotFoundError
from seer.isolation import connect_beneath
from seer.providers._base import Machine, Provider
from seer.providers._options import options_from
from seer.providers._spec import MachineSpec, MachineStatus
from seer.providers.agent import wire
from seer.providers.client._keeper import KeeperClient
from seer.providers.local._machine import LocalMachine
from seer.providers.local._orphans import remove_orphans
from seer.providers.local._record import LocalRecord, how_it_ended, machines_dir, read_record
from seer.providers.local._start import StartedKeeper, check, check_gpus, start_keeper

_LOG_TAIL = 4000


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options for `SandboxConfig.provider_options` with `provider="local"`."""

    users: bool = False
    """Whether commands can run as users other than the agent, including root. This needs
    bubblewrap, and Seer must run as root. A sandbox that serves an interface or hides a model
    cannot use it."""

    def __post_init__(self) -> None:
        if not isinstance(self.users, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError("provider_options['users']", self.users, "must be True or False")


class LocalProvider(Provider):
    """Machines on this host."""

    name = "local"
    shares_host = True

    def __init__(self) -> None:
        self._cleaning: asyncio.Task[list[str]] | None = None

    async def check(self, spec: MachineSpec) -> None:
        """Refuse a machine with GPUs that this host does not have."""
        if spec.gpu is not None and not spec.gpu_optional:
            await asyncio.to_thread(check_gpus, spec)

    async def start(self, spec: MachineSpec) -> Machine:
        """Start a machine and hold its lease."""
        # Several sandboxes may share a workstation's only GPU. Free GPUs are used first.
        users = options_from(LocalOptions, spec.options, vendor="local").users
        started, keeper = await launch(dataclasses.replace(spec, share_gpus=True, users=users))
        machine = LocalMachine(started.folder, started.record, keeper)
        self._clean_later()
        return machine

    def _clean_later(self) -> None:
        """Remove orphaned machines in the background."""
        if self._cleaning is None or self._cleaning.done():
            self._cleaning = asyncio.create_task(asyncio.to_thread(remove_orphans))

    async def find(self, machine_id: str) -> Machine:
        """Adopt a running machine, even one of another process."""
        if not machine_id.startswith("sb-") or not machine_id[3:].isalnum():
            raise SandboxNotFoundError(f"{machine_id!r} is not the id of a local sandbox")
        folder = machines_dir() / machine_id
        keeper = await _reach_keeper(folder)
        if keeper is not None:
            try:
                record = await asyncio.to_thread(read_record, folder)
                await keeper.hold()
                return LocalMachine(folder, record, keeper)
            except BaseException as error:
                await asyncio.shield(keeper.let_go())
                if not isinstance(error, SandboxLostError | OSError | ValueError):
                    raise
        await asyncio.to_thread(remove_orphans, machine_id)
        known = await asyncio.to_thread(how_it_ended, machine_id)
        if known is None:
            raise SandboxNotFoundError(f"no sandbox {machine_id!r} runs on this machine")
        raise SandboxNotFoundError(f"sandbox {machine_id!r} is not running: {known[0]}")

    async def list(self) -> list[MachineStatus]:
        """All running machines of this user."""
        await asyncio.to_thread(remove_orphans)
        folders = sorted(machines_dir().iterdir())
        found = await asyncio.gather(*map(_status, folders))
        return [status for status in found if status is not None]


async def launch(spec: MachineSpec) -> tuple[StartedKeeper, KeeperClient]:
    """Start a machine and wait until its steward serves. The returned client holds its lease.

    Raises:
        ProviderError: The machine could not be started; nothing is left running.
        IsolationError: The jail could not be set up.
    """
    check(spec)
    started, keeper = await _start_keeper(spec)
    try:
        async with asyncio.timeout(spec.start_timeout):
            version = await _read_pipe(started.ready)
    except TimeoutError:
        await _give_up(keeper)
        raise ProviderError(
            f"the sandbox's steward was not ready within start_timeout={spec.start_timeout:g} s"
        ) from None
    except BaseException:
        await asyncio.shield(_give_up(keeper))
        raise
    finally:
        os.close(started.ready)
        # The first process has forked the keeper, and has usually ended by now.
        if started.spawned.poll() is None:
            await asyncio.to_thread(started.spawned.wait)
    if version != b"%d" % wire.VERSION:
        raise await _start_failure(started, keeper)
    return started, keeper


async def _start_keeper(spec: MachineSpec) -> tuple[StartedKeeper, KeeperClient]:
    """Start a keeper and connect to it. If this is cancelled, the start is undone first."""

    async def start() -> tuple[StartedKeeper, KeeperClient]:
        started = await asyncio.to_thread(start_keeper, spec)
        return started, await KeeperClient.on(started.control)

    starting = asyncio.create_task(start())
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        started, keeper = await starting
        os.close(started.ready)
        await asyncio.shield(_give_up(keeper))
        await asyncio.to_thread(started.spawned.wait)
        raise


async def _read_pipe(fd: int) -> bytes:
    os.set_blocking(fd, False)
    await readable(fd)
    return os.read(fd, 16)


async def _give_up(keeper: KeeperClient) -> None:
    await keeper.tell("terminate")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            await keeper.ended.wait()
    await keeper.close()


async def _start_failure(started: StartedKeeper, keeper: KeeperClient) -> ProviderError:
    """Why a machine did not start. When this returns, the machine is completely removed."""
    log = started.folder / "keeper.log"
    said = await asyncio.to_thread(_tail, log)
    with contextlib.suppress(TimeoutError):
        # The keeper also notices the failure, and knows the reason.
        async with asyncio.timeout(5):
            await keeper.ended.wait()
    await _give_up(keeper)
    reason = keeper.reason
    if reason is None:
        known = await asyncio.to_thread(how_it_ended, started.folder.name)
        reason = known[0] if known is not None else said or "its keeper gave no reason"
    await asyncio.to_thread(remove_orphans, started.folder.name)
    return ProviderError(f"the sandbox did not start: {reason}")


def _tail(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:].strip()
    except OSError:
        return ""


async def _reach_keeper(folder: Path) -> KeeperClient | None:
    try:
        sock = await connect_in_thread(partial(connect_beneath, folder, "keeper.sock"))
    except OSError:
        return None
    return await KeeperClient.on(sock)


async def _status(folder: Path) -> MachineStatus | None:
    keeper = await _reach_keeper(folder)
    if keeper is None:
        return None
    try:
        record = await asyncio.to_thread(read_record, folder)
        return machine_status(record, await keeper.request("status"))
    except (SandboxLostError, OSError, ValueError):
        return None
    finally:
        await keeper.close()


def machine_status(record: LocalRecord, answer: "wire.Message") -> MachineStatus:
    """One line of a listing, from a machine's record and its keeper's answer to `status`.

    Raises:
        WireError: `answer` is not an answer to `status`.
    """
    return MachineStatus(
        id=record.id,
        provider="local",
        label=record.label,
        started_at=record.started_at,
        gpu=record.gpu,
        detached=bool(wire.get_int(answer, "detached")),
        controller_alive=wire.get_int(answer, "holders") > 0,
        paused=bool(wire.get_int(answer, "paused", 0)),
    )
