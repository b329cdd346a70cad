"""Installs a workspace's files in a machine, through the machine's file API.

Installing twice is harmless. If a file differs from the one that was installed before, the agent or
a person has changed it. It is kept, and the report and the log name it.
"""

import errno
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from seer.errors import RemoteFileError
from seer.workspace._library import read_folder
from seer.workspace._workspace import SKILL_FOLDERS, Workspace

logger = logging.getLogger(__name__)

MANIFEST = ".seer/installed.json"
_MANIFEST_LIMIT = 4 * 1024 * 1024


class FileApi(Protocol):
    """The part of a machine that the installer uses."""

    async def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file.

        Raises:
            RemoteFileError: The file cannot be read; the error has the errno.
        """
        ...

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False
    ) -> None:
        """Write a file atomically, and create its parent folders."""
        ...


@dataclass(frozen=True, kw_only=True)
class InstallReport:
    """The relative paths of installed files, by what happened to them."""

    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Files that were not overwritten, because they were changed after they were installed."""


async def install_files(workspace: Workspace, machine: FileApi, *, root: str) -> InstallReport:
    """Install skills, local files and local folders below `root`.

    Raises:
        RemoteFileError: The machine refused a file. The files before it are installed.
    """
    return await _install(dict(_workspace_files(workspace)), machine, root)


async def install_libraries(workspace: Workspace, machine: FileApi, *, root: str) -> InstallReport:
    """Install all libraries below `root`. The caller adds `root` to the session's `sys.path`.

    Raises:
        RemoteFileError: The machine refused a file. The files before it are installed.
    """
    return await _install(workspace.library_files(), machine, root)


def _workspace_files(workspace: Workspace) -> Iterator[tuple[str, bytes]]:
    for skill in workspace.skills:
        for folder in SKILL_FOLDERS:
            for path, content in skill.files.items():
                yield f"{folder}/{skill.name}/{path}", content
    for source, target in workspace.local_sources():
        if source.is_dir():
            for path, content in read_folder("Workspace.local_dirs", source).items():
                yield f"{target}/{path}", content
        else:
            yield target, source.read_bytes()


async def _install(files: Mapping[str, bytes], machine: FileApi, root: str) -> InstallReport:
    if not files:
        return InstallReport()
    base = root.rstrip("/")
    before = await _read_manifest(machine, f"{base}/{MANIFEST}")
    written: list[str] = []
    unchanged: list[str] = []
    kept: list[str] = []
    for path, content in files.items():
        target = f"{base}/{path}"
        present = await _read(machine, target, len(content))
        if present == content:
            unchanged.append(path)
        elif present is None or _digest(present) == before.get(path):
            await machine.write_file(target, content)
            written.append(path)
        else:
            kept.append(path)
            logger.warning("%s was changed in the workspace, so it is not overwritten", path)
    manifest = before | {path: _digest(files[path]) for path in (*written, *unchanged)}
    if manifest != before:
        await machine.write_file(
            f"{base}/{MANIFEST}", json.dumps(manifest, indent=1, sort_keys=True).encode()
        )
    return InstallReport(written=tuple(written), unchanged=tuple(unchanged), kept=tuple(kept))


async def _read(machine: FileApi, path: str, expected: int) -> bytes | None:
    """The file's content, or None if there is no such file.

    The agent may have made the file larger. This reads at least one byte more than expected, which
    is enough to detect the difference.
    """
    try:
        return await machine.read_file(path, length=max(expected, _MANIFEST_LIMIT) + 1)
    except RemoteFileError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


async def _read_manifest(machine: FileApi, path: str) -> dict[str, str]:
    """The hashes of files that were installed before.

    The agent can change the manifest, but that affects only files in its own workspace.
    """
    try:
        data = await machine.read_file(path, length=_MANIFEST_LIMIT)
        loaded: object = json.loads(data)
    except (RemoteFileError, ValueError, RecursionError):
        return {}
    if not isinstance(loaded, dict):
        return {}
    entries = cast("dict[object, object]", loaded)
    return {k: v for k, v in entries.items() if isinstance(k, str) and isinstance(v, str)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
