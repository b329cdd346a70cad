"""Prepares what every session needs before it opens: a name, a folder, a machine source."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from seer._checks import check_type, items_of
from seer.errors import ConfigError
from seer.execution._folders import PrivateFolder
from seer.execution._machine import (
    JailOptions,
    LocalMachineSource,
    MachineSource,
    SandboxLike,
    SandboxMachineSource,
)
from seer.isolation import JAIL_UIDS
from seer.workspace import Workspace

_ANYBODY = stat.S_ISVTX | stat.S_IWOTH
_MOST_LINKS = 40
_made: set[Path] = set()
"""The `workspace` folders that this process created."""


@dataclass(frozen=True, kw_only=True)
class SessionParts:
    """What a session is made of."""

    name: str
    workspace: Workspace
    machines: MachineSource
    private: PrivateFolder
    unused: Path | None = None
    """The workspace folder on this host, if Seer chose it; it is removed at the end if empty."""


@asynccontextmanager
async def prepare_session(
    kind: str,
    sandbox: SandboxLike | None,
    workspace: Workspace | None,
    *,
    name: str | None,
    jail: JailOptions,
) -> AsyncGenerator[SessionParts]:
    """Prepare what a session needs, and remove it if the block fails.

    Raises:
        ConfigError: The name or the folder cannot be used, or options of a local jail were given
            with a sandbox.
    """
    check_type("workspace", workspace, Workspace, "a Workspace", none=True)
    check_type("workspace_dir", jail.workspace_dir, (str, os.PathLike), "a path", none=True)
    items_of("packages", jail.packages, str, "packages")
    workspace = workspace if workspace is not None else Workspace()
    name = _check_name(name, kind)
    if sandbox is not None and jail != JailOptions():
        raise ConfigError(
            "sandbox",
            sandbox,
            "workspace_dir, packages, isolation and memory belong to a jail on this machine; "
            "leave them out, or give them to the SandboxConfig",
        )
    private = PrivateFolder(kind)
    unused: Path | None = None
    try:
        if sandbox is None:
            folder = _make_folder(jail.workspace_dir, name)
            machines: MachineSource = LocalMachineSource(
                workspace, name=name, folder=folder, private=private, jail=jail
            )
            if jail.workspace_dir is None:
                unused = folder
        else:
            machines = SandboxMachineSource(workspace, sandbox, session_id=private.name, name=name)
        yield SessionParts(
            name=name, workspace=workspace, machines=machines, private=private, unused=unused
        )
    except BaseException:
        private.remove()
        remove_unused(unused)
        raise


def remove_unused(folder: Path | None) -> None:
    """Remove a folder that Seer chose and in which no file was left; files are never removed."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.rmdir()
        if folder.parent in _made:
            folder.parent.rmdir()
            _made.discard(folder.parent)


def slug(name: str) -> str:
    """A session's name as part of a file name."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)
    return plain.strip("-") or "session"


def create_folder(option: str, folder: Path, *, is_default: bool) -> None:
    """Create the folder that `option` names, unless it exists.

    Raises:
        ConfigError: This user may not create it, or its file system is read-only.
    """
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:  # another session has just removed its empty `workspace`
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        elsewhere = " or run the program in another folder" if is_default else ""
        reason = f"cannot be created ({error.strerror}); choose another {option}{elsewhere}"
        raise ConfigError(option, str(folder.absolute()), reason) from error


def _check_name(name: str | None, kind: str) -> str:
    if name is None:
        return f"{kind}-{secrets.token_hex(3)}"
    check_type("name", name, str, "a text")
    if not name.strip() or len(name) > 80 or not name.isprintable():
        raise ConfigError("name", name, "a session's name has 1 to 80 printable characters")
    return name


def _make_folder(workspace_dir: str | os.PathLike[str] | None, name: str) -> Path:
    if workspace_dir is None:
        folder = Path("workspace") / f"{slug(name)}-{secrets.token_hex(3)}"
    else:
        folder = Path(workspace_dir)
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError("workspace_dir", str(folder), "is not a folder")
    real = _resolve(folder)
    home = Path.home().resolve()
    if real == home or real in home.parents:
        raise ConfigError(
            "workspace_dir",
            str(folder),
            "an agent would own your home folder; choose another folder",
        )
    if workspace_dir is None and not real.parent.exists():
        _made.add(real.parent)
    create_folder("workspace_dir", real, is_default=workspace_dir is None)
    return real


def _resolve(folder: Path) -> Path:
    """The real path of a folder. Refuses links that an agent or another user may have planted.

    Raises:
        ConfigError: The path has such a link, or is inside a folder of an agent.
    """
    left = list(reversed(folder.parts[1:]))
    above, links = Path("/"), 0
    while left:
        step = above / left.pop()
        if step.name == "..":
            above = above.parent
            continue
        try:
            found, where = step.lstat(), above.lstat()
        except FileNotFoundError:
            return step.joinpath(*reversed(left))
        if found.st_uid in JAIL_UIDS and (left or stat.S_ISLNK(found.st_mode)):
            raise ConfigError(
                "workspace_dir", str(folder), f"{step} belongs to an agent; choose another folder"
            )
        if not stat.S_ISLNK(found.st_mode):
            above = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise ConfigError("workspace_dir", str(folder), "its path has too many symbolic links")
        # The same rule as the kernel's `protected_symlinks`.
        stranger = found.st_uid not in (os.geteuid(), where.st_uid)
        if stranger and where.st_mode & _ANYBODY == _ANYBODY:
            raise ConfigError(
                "workspace_dir",
                str(folder),
                f"{step} is a symlink made by user {found.st_uid} in a world-writable folder; "
                "give its target directly",
            )
        target = step.readlink()
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        above = Path("/") if target.is_absolute() else above
    return above
