"""One remote host, as its controller uses it: first contact, requests, files, machines."""

import asyncio
import dataclasses
import hashlib
import json
import logging
import os
import stat
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from seer import errors
from seer._paths import state_dir
from seer.errors import (
    CapacityError,
    HostFullError,
    HostUnsuitableError,
    ProviderError,
    SandboxLostError,
    SandboxNotFoundError,
    SeerError,
)
from seer.providers._base import Host
from seer.providers._spec import MachineSpec, MachineStatus, write_spec
from seer.providers.agent.cleaning import record_end
from seer.providers.local._record import how_it_ended, parse_record
from seer.providers.remote.controller._code_archive import bootstrap, code_archive
from seer.providers.remote.controller._link import Link, Ran
from seer.providers.remote.controller._machine import RemoteMachine

logger = logging.getLogger(__name__)

_MAIN = "from seer.providers.remote.onhost.operations import main; main()"
_PUMP = "from seer_remote.pump import main; main()"
_FULL = ("No space left on device", "Disk quota exceeded")
_LOOK_AGAIN = 5.0
_CHUNK = 1 << 20
_PLAIN = frozenset(
    {
        "CapacityError",
        "HostFullError",
        "HostUnsuitableError",
        "IsolationError",
        "IsolationUnavailableError",
        "ModelError",
        "PackageError",
        "ProviderError",
        "RepoError",
        "SandboxNotFoundError",
        "SecretMissingError",
    }
)
"""Errors of a host that are raised here with the same class. Each class takes only a message."""


class RemoteHost(Host):
    """A host that is reached through a link."""

    def __init__(
        self,
        link: Link,
        *,
        provider: str,
        place: str,
        root: str = "",
        python: str = "",
        price: float | None = None,
        share_gpus: bool = False,
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        devices: Sequence[int] | None = None,
    ) -> None:
        """Describe the host. Nothing is sent before the first request.

        Args:
            link: The connection to the host.
            provider: The provider's name.
            place: The part after the `@` in the ids of its machines.
            root: Seer's folder on the host; empty for `~/.seer`.
            python: The interpreter to use; empty to search for one.
            price: US dollars per second.
            share_gpus: Whether a machine may get a GPU that is in use.
            launcher: A command on the host that starts machines.
            environment: Variables for preparing packages and models on the host.
            devices: The GPUs of its machines, if an external scheduler allocates them.
        """
        self.link = link
        self.provider = provider
        self.place = place
        self.name = link.name
        self.price = price
        self._wanted_root = root
        self._wanted_python = python
        self._share_gpus = share_gpus
        self._launcher = tuple(launcher)
        self._environment = dict(environment or {})
        self._devices = None if devices is None else list(devices)
        self._program: list[str] | None = None
        self._preparing = asyncio.Lock()

    # --- machines -----------------------------------------------------------------------------

    async def start(self, spec: MachineSpec) -> RemoteMachine:
        """Start a machine and hold its lease. Waits up to `start_timeout` for a GPU.

        Raises:
            ProviderError: The machine could not be started; nothing is left running.
            IsolationError: The jail could not be set up on the host.
        """
        request = {
            "spec": write_spec(dataclasses.replace(spec, share_gpus=self._share_gpus)),
            "price": self.price,
            "gates": sorted(spec.gates),
            "launcher": list(self._launcher),
            "devices": self._devices,
        }
        found = await self._start_when_free(request, spec.start_timeout)
        record = parse_record(found["record"])
        session_socket: str = found["porter"]
        return await RemoteMachine.attach(
            self, record, session_socket, hold=False, gates=spec.gates
        )

    async def _start_when_free(
        self, request: Mapping[str, object], patience: float
    ) -> dict[str, Any]:
        deadline = time.monotonic() + patience
        while True:
            try:
                return await self._ask("start", request=request)
            except CapacityError as error:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise CapacityError(
                        f"{self.name}: no GPU was free within start_timeout={patience:g} s: {error}"
                    ) from None
                logger.warning("%s: waiting up to %.0f s: %s", self.name, left, error)
                await asyncio.sleep(min(_LOOK_AGAIN, left))

    async def find(self, machine_id: str) -> RemoteMachine:
        """Adopt a machine of this host, by its id on the host.

        Raises:
            SandboxNotFoundError: It is not running; the message says how it ended, if known.
        """
        found = await self._ask("find", machine_id)
        record = parse_record(found["record"])
        try:
            return await RemoteMachine.attach(self, record, found["porter"], hold=True)
        except errors.SandboxLostError:
            reason = await self.how_it_ended(machine_id) or "it has just ended"
            raise SandboxNotFoundError(f"sandbox {machine_id!r} is not running: {reason}") from None

    async def machines(self) -> list[MachineStatus]:
        """The machines that run on this host."""
        found: list[dict[str, Any]] = await self._ask("list")
        return [self._status(each) for each in found]

    def _status(self, fields: Mapping[str, Any]) -> MachineStatus:
        price: float | None = fields["price"]
        started_at: float = fields["started_at"]
        return MachineStatus(
            id=f"{fields['id']}@{self.place}",
            provider=self.provider,
            label=fields["label"],
            started_at=started_at,
            gpu=fields["gpu"],
            detached=fields["detached"],
            controller_alive=fields["controller_alive"],
            paused=fields["paused"],
            cost_usd=None if price is None else price * max(time.time() - started_at, 0),
        )

    async def how_it_ended(self, machine_id: str) -> str | None:
        """Why a machine ended, by its id on the host; None if that is unknown."""
        return await self._ask("ended", machine_id)

    def explain_loss(self, error: SandboxLostError) -> SandboxLostError:
        """The error for a lost machine. A subclass may return a more specific error."""
        return error

    def check_can_detach(self) -> None:
        """Refuse if machines of this host cannot outlive their controller.

        Raises:
            SandboxStateError: Its machines always end with this process.
        """

    def check_can_pause(self) -> None:
        """Refuse if pausing machines of this host has no benefit.

        Raises:
            PauseUnsupportedError: The message says what its provider can do instead.
        """

    async def machine_ended(self) -> None:
        """Called after a machine was terminated. A rented host can then be released."""

    def record_end_of(self, machine: RemoteMachine) -> None:
        """Record on this computer how a machine ends, because its host may be gone by then."""
        task = asyncio.create_task(_record_end(machine))
        _recording[task] = machine.id
        task.add_done_callback(_recording.pop)

    async def ends_recorded(self) -> None:
        """Wait until the ends of its machines are recorded; see `record_end_of`."""
        await asyncio.gather(*_recording_of(f"@{self.place}"), return_exceptions=True)

    # --- files and programs -------------------------------------------------------------------

    async def run(
        self,
        module: str,
        request: Mapping[str, object],
        *,
        on_message: Callable[[Mapping[str, Any]], None],
    ) -> Mapping[str, Any]:
        """Run the `main` of a module of this package on the host."""
        whole = {"environment": self._environment, "request": request}
        return await self._ask("run", module, request=whole, on_message=on_message)

    async def push(self, folder: Path) -> Path:
        """Copy a folder to the host, unless its content is already there."""
        name = await asyncio.to_thread(digest, folder)
        found = await self._ask("has", name)
        if found is None:
            found = await self._ask("store", name, stdin=_tar(folder))
        return Path(found)

    async def release(self) -> None:
        """Release the host. This does nothing if the host is not rented."""

    # --- requests -----------------------------------------------------------------------------

    async def _ask(
        self,
        operation: str,
        *arguments: str,
        request: Mapping[str, object] | None = None,
        stdin: AsyncIterator[bytes] | None = None,
        on_message: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Any:
        """Run an operation of `operations.py` on the host, and return its answer."""
        program = await self._ready()
        answer: dict[str, Any] = {}
        rest = b""

        def on_stdout(data: bytes) -> None:
            nonlocal rest
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message: dict[str, Any] = json.loads(line)
                if "message" not in message:
                    answer.update(message)
                elif on_message is not None:
                    on_message(message["message"])

        fed = stdin if stdin is not None else json.dumps(request or {}).encode()
        try:
            ran = await self.link.run(
                [*program, operation, *arguments], stdin=fed, on_stdout=on_stdout
            )
        except ValueError as error:
            raise ProviderError(f"{self.name}: the answer is not valid JSON: {error}") from None
        if "ok" in answer:
            return answer["ok"]
        if "error" in answer:
            raise self._error(answer["error"])
        raise self._failure(operation, ran)

    def _error(self, found: Mapping[str, str]) -> SeerError:
        kind = found["type"] if found["type"] in _PLAIN else "ProviderError"
        made: type[SeerError] = getattr(errors, kind)
        return made(f"{self.name}: {found['message']}")

    def _failure(self, what: str, ran: Ran) -> ProviderError:
        words = ran.stderr.decode(errors="replace").strip()[-2000:]
        kind = HostFullError if any(full in words for full in _FULL) else ProviderError
        return kind(f"{self.name}: {what} failed with exit code {ran.exit_code}: {words}")

    async def _ready(self) -> list[str]:
        """The command line that runs `operations.py`. The first call sends the code archive."""
        async with self._preparing:
            if self._program is None:
                python, root, name = await self._contact()
                folder = f"{root}/kits/{name}"
                code = f"import sys; sys.path.insert(0, {folder!r}); "
                self.link.pump = (python, "-I", "-S", "-c", code + _PUMP)
                self._program = [python, "-I", "-c", code + _MAIN, root]
            return self._program

    async def _contact(self) -> tuple[str, str, str]:
        name, packed = await asyncio.to_thread(code_archive)
        for mode, data in (("look", b""), ("unpack", packed)):
            argv = ["/bin/sh", "-c", bootstrap(), "seer", mode, self._wanted_root, name]
            ran = await self.link.run([*argv, self._wanted_python], stdin=data)
            if ran.exit_code != 0:
                raise self._failure("the first contact", ran)
            last = ran.stdout.decode(errors="replace").rstrip("\n").rpartition("\n")[2]
            if last == "no python":
                wanted = self._wanted_python
                raise HostUnsuitableError(
                    f"{self.name}: "
                    + (f"python={wanted!r} does not run there, or" if wanted else "no Python there")
                    + " is older than 3.11; install one, or name one with the option 'python'"
                )
            parts = last.split("\t")
            if len(parts) != 4:
                raise ProviderError(
                    f"{self.name}: the first contact ended with {last!r} instead of its answer; "
                    f"the login shell there must not print anything in non-interactive sessions"
                )
            python, version, has, root = parts
            if has == "1":
                logger.info("%s: Python %s, %s", self.name, version, root)
                return python, root, name
        raise ProviderError(f"{self.name}: the code archive could not be unpacked under {root!r}")


_RECORD_TIME = 10.0
_recording: dict[asyncio.Task[None], str] = {}
"""The tasks that record how this process's machines end, with the machines' ids."""
# In a fork, the parent's tasks never end, because they belong to the parent's event loop.
os.register_at_fork(after_in_child=_recording.clear)


def _recording_of(suffix: str) -> list[asyncio.Task[None]]:
    """The tasks of the machines whose ids end with `suffix`: one machine, or all at a place."""
    return [task for task, machine_id in _recording.items() if machine_id.endswith(suffix)]


async def recorded_end(machine_id: str) -> str | None:
    """How a lost machine ended, from this computer's records; None if they do not have it.

    The task that records the end runs concurrently with the call that first notices it, so this
    waits for the task.
    """
    if recording := _recording_of(machine_id):
        await asyncio.wait(recording, timeout=_RECORD_TIME)
    known = await asyncio.to_thread(how_it_ended, machine_id)
    return known[0] if known is not None else None


async def _record_end(machine: RemoteMachine) -> None:
    reason = await machine.ended()
    if reason is not None:
        state = os.fsencode(state_dir())
        await asyncio.to_thread(record_end, state, machine.id, reason, at=time.time())


def digest(folder: Path) -> str:
    """The name of a folder's copies: a hash of its content."""
    total = hashlib.sha256()
    for path in _walk(folder):
        status = path.lstat()
        total.update(f"{path.relative_to(folder)}\0{stat.S_IMODE(status.st_mode):o}\0".encode())
        if path.is_symlink():
            total.update(os.readlink(path).encode())  # noqa: PTH115
        elif path.is_file():
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:32]


def _walk(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


async def _tar(folder: Path) -> AsyncIterator[bytes]:
    """The folder as a tar stream."""
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        entry = await asyncio.to_thread(_entry, path, name)
        if entry is None:
            continue
        yield entry.tobuf(tarfile.PAX_FORMAT)
        if not entry.isreg():
            continue
        left = entry.size
        with path.open("rb") as file:
            while left > 0:
                data = await asyncio.to_thread(file.read, min(_CHUNK, left))
                if not data:
                    raise ProviderError(f"{str(path)!r} became shorter while it was copied")
                left -= len(data)
                yield data
        yield b"\0" * (-entry.size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _entry(path: Path, name: str) -> tarfile.TarInfo | None:
    with tarfile.open(fileobj=BytesIO(), mode="w") as archive:
        entry = archive.gettarinfo(path, name)
    # A hard link would refer to another member, so each file is sent whole.
    if entry.islnk():
        entry.type, entry.size = tarfile.REGTYPE, path.stat().st_size
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry if entry.isreg() or entry.isdir() or entry.issym() else None
