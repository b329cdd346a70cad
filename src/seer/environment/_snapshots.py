"""Snapshots: a sandbox's files at one moment, stored on the controller's computer.

`tar` packs and unpacks a snapshot inside the machine. On the controller, each folder is one opaque
file: an agent may have written the contents, so no host program reads them. This works the same
with every provider. A snapshot never changes.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seer._transient import TransientFolder
from seer.environment._adoption import config_from_dict, config_to_dict
from seer.environment.config._config import SandboxConfig
from seer.errors import SandboxStateError, SnapshotError, visible
from seer.providers import Machine, Stream

if TYPE_CHECKING:
    from seer.environment._start import Started

logger = logging.getLogger(__name__)

_MAX_WORDS = 2000
_STALLED_AFTER = 120.0
_SPARE = 1 << 30
"""Bytes that a snapshot leaves free on the disk that it is written to."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot on disk."""

    id: str
    description: str
    created_at: float
    config: SandboxConfig
    folder: Path
    """Holds `snapshot.json` and one archive per folder."""


@dataclass(frozen=True)
class _Manifest:
    """The content of `snapshot.json`. Pydantic checks it."""

    description: str
    created_at: float
    config: dict[str, Any]


def snapshots_dir() -> Path:
    """Where snapshots are kept: `$XDG_DATA_HOME/seer/snapshots`, or below `~/.local/share`."""
    root = os.environ.get("XDG_DATA_HOME", "")
    base = Path(root) if root.startswith("/") else Path.home() / ".local" / "share"
    return base / "seer" / "snapshots"


def find_snapshot(snapshot_id: str) -> Snapshot:
    """The snapshot of this id.

    Raises:
        SnapshotError: There is none, or its manifest is damaged.
    """
    folder = snapshots_dir() / snapshot_id
    if not re.fullmatch(r"snap-[0-9a-f]{16}", snapshot_id) or not folder.is_dir():
        known = sorted(p.name for p in snapshots_dir().glob("snap-*")) or "none"
        raise SnapshotError(f"there is no snapshot {snapshot_id!r}; known snapshots: {known}")
    from pydantic import TypeAdapter

    try:
        manifest = TypeAdapter(_Manifest).validate_json((folder / "snapshot.json").read_bytes())
    except (OSError, ValueError) as error:
        raise SnapshotError(f"snapshot {snapshot_id!r} cannot be read: {error}") from error
    fields: dict[str, Any] = {**vars(manifest), "config": config_from_dict(manifest.config)}
    return Snapshot(id=snapshot_id, folder=folder, **fields)


async def take_snapshot(started: "Started", description: str) -> str:
    """Store a copy of the machine's files, and return the snapshot's id.

    Raises:
        SnapshotError: The copy failed, for example because the disk is full. No partial copy
            remains.
    """
    machine = started.machine
    snapshot_id = f"snap-{secrets.token_hex(8)}"
    store = snapshots_dir()
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = TransientFolder("draft", inside=store)
    draft = scratch.path
    try:
        for part, folder in _folders(machine).items():
            await _pack(machine, folder, draft / f"{part}.tar", limit=_limit(started, store))
        manifest = {
            "description": description,
            "created_at": time.time(),
            "config": config_to_dict(started.config),
        }
        (draft / "snapshot.json").write_text(json.dumps(manifest))
        draft.rename(store / snapshot_id)
    except OSError as error:
        raise SnapshotError(f"the snapshot could not be written: {error}") from error
    finally:
        await asyncio.to_thread(scratch.remove)
    logger.info("snapshot %s of %s taken", snapshot_id, machine.id)
    return snapshot_id


async def restore_snapshot(machine: Machine, snapshot: Snapshot) -> None:
    """Unpack a snapshot's files in the machine, where they were before.

    Raises:
        SnapshotError: The files could not be unpacked.
    """
    for part, folder in _folders(machine).items():
        archive = snapshot.folder / f"{part}.tar"
        if part != "packages":
            await _unpack(machine, archive, folder)
        elif archive.exists():
            # The machine's own files (the links to its interpreter, say) stay as they are.
            await _unpack(machine, archive, folder, "--skip-old-files")


def _folders(machine: Machine) -> dict[str, str]:
    folders = {"workdir": machine.layout.workdir, "home": machine.layout.home}
    if machine.layout.packages is not None:
        folders["packages"] = machine.layout.packages
    return folders


def _limit(started: "Started", store: Path) -> int:
    """The largest allowed archive in bytes: the agent's code could make it arbitrarily large."""
    free = shutil.disk_usage(store).free - _SPARE
    disk = started.config.disk_bytes
    # An archive has a header for each file, and some padding.
    return free if disk is None else min(free, 2 * disk + (64 << 20))


async def _pack(machine: Machine, folder: str, archive: Path, *, limit: int) -> None:
    # Files that the agent cannot read are left out, so that the rest is saved.
    options = ("--sparse", "--ignore-failed-read", "-cf", "-", ".")
    process = await machine.spawn(["tar", "-C", folder, *options])
    words = bytearray()
    size = 0
    try:
        with archive.open("wb") as file:
            async for stream, data in _unless_stopped(process.output(), folder):
                if stream != "stdout":
                    words += data[: _MAX_WORDS - len(words)]
                    continue
                size += len(data)
                if size > limit:
                    raise SnapshotError(
                        f"the snapshot of {folder!r} is larger than {limit} bytes; free some "
                        f"space, or delete large files in the sandbox"
                    )
                await asyncio.to_thread(file.write, data)
            file.flush()
            os.fsync(file.fileno())
        exit_code = await process.wait()
    finally:
        await process.close()
    # 1 means that a file changed while tar read it, which is normal in a running machine.
    if exit_code not in (0, 1):
        raise SnapshotError(
            f"packing {folder!r} failed with {exit_code}: {visible(words.decode(errors='replace'))}"
        )
    if words:
        said = visible(words.decode(errors="replace"))
        logger.warning("some files are missing from the snapshot, or changed during it: %s", said)


async def _unless_stopped(
    output: AsyncIterator[tuple[Stream, bytes]], folder: str
) -> AsyncIterator[tuple[Stream, bytes]]:
    """Pass on a program's output. Fail if it stalls: the agent's code can stop a program."""
    while True:
        try:
            async with asyncio.timeout(_STALLED_AFTER):
                item = await anext(output)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise SnapshotError(
                f"packing {folder!r} made no progress for {_STALLED_AFTER:g} s; a program in "
                f"the sandbox may have stopped it"
            ) from None
        yield item


async def _unpack(machine: Machine, archive: Path, folder: str, *options: str) -> None:
    argv = ["tar", "-C", folder, "--no-same-owner", *options, "-xf", "-"]
    process = await machine.spawn(argv, stdin=True)
    words = bytearray()

    async def feed() -> None:
        # tar may end before it has read the archive. Its exit code and its output say why.
        with contextlib.suppress(SandboxStateError), archive.open("rb") as file:
            while data := await asyncio.to_thread(file.read, 1 << 20):
                await process.write(data)
            await process.close_stdin()

    async def listen() -> None:
        async for _, data in process.output():
            words.extend(data[: _MAX_WORDS - len(words)])

    try:
        await asyncio.gather(feed(), listen())
        exit_code = await process.wait()
    finally:
        await process.close()
    if exit_code != 0:
        said = visible(words.decode(errors="replace"))
        raise SnapshotError(f"unpacking into {folder!r} failed with {exit_code}: {said}")
