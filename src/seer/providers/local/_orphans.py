"""Clean up after machines whose keepers were killed: folders, processes, control groups.

The keeper and the reaper of a machine hold a lock on its folder. If the lock is free, both are
gone: the computer lost power, or everything was killed at once. This module finds an orphaned
machine's folder, processes and groups by the machine's name, and removes them. It touches nothing
that is locked.
"""

import contextlib
import fcntl
import logging
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

from seer._paths import state_dir
from seer.isolation._ownership import chown_tree
from seer.providers.agent.cleaning import record_end, remove_tree
from seer.providers.local._groups import remove_group, remove_unrecorded_groups
from seer.providers.local._record import how_it_ended, machines_dir, read_record

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def being_made() -> Generator[None]:
    """Keep `remove_orphans` from removing a folder between its `mkdir` and its lock."""
    with _creation_lock() as creating:
        fcntl.flock(creating, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def _creation_lock() -> Generator[int]:
    fd = os.open(state_dir() / "machines.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def lock_folder(folder: Path) -> int:
    """Lock a machine's folder. Processes that inherit the descriptor also hold the lock."""
    # Lock the file before renaming it, so that a clean-up always finds it locked.
    fd = os.open(folder / "lock.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (folder / "lock.new").rename(folder / "lock")
    return fd


def remove_orphans(only: str | None = None) -> list[str]:
    """Remove orphaned machines. Returns their ids.

    Args:
        only: The id of the only machine to check; None for all.
    """
    removed: list[str] = []
    folder = machines_dir()
    for path in [folder / only] if only is not None else list(folder.iterdir()):
        if path.is_dir() and _remove_if_dead(path):
            removed.append(path.name)
    if only is None:
        remove_unrecorded_groups()
    return removed


def _remove_if_dead(path: Path) -> bool:
    with contextlib.ExitStack() as held:
        try:
            if not _take(path, held):
                return False
            _kill_left_over(path)
            if how_it_ended(path.name) is None:
                reason = "its keeper was killed, or the computer went down"
                record_end(os.fsencode(state_dir()), path.name, reason, at=time.time())
            _give_back(path)
            with contextlib.suppress(FileNotFoundError):
                remove_tree(os.fsencode(path))
        except OSError as error:
            logger.warning("the remains of machine %s cannot be removed: %s", path.name, error)
            return False
    logger.info("removed the remains of machine %s, whose keeper was gone", path.name)
    return True


def _take(path: Path, held: contextlib.ExitStack) -> bool:
    """Take the lock of an orphaned machine's folder; False if another process has it."""
    try:
        return _try_lock(_open(path / "lock", held), fcntl.LOCK_EX)
    except FileNotFoundError:
        pass
    # A folder without a lock file is being created, or its creator was killed. No folder is created
    # while this process holds the creation lock. Check again, because the folder may have been
    # locked since.
    creating = held.enter_context(_creation_lock())
    if not _try_lock(creating, fcntl.LOCK_EX):
        return False
    try:
        return _try_lock(_open(path / "lock", held), fcntl.LOCK_EX)
    except FileNotFoundError:
        return path.exists()


def _open(path: Path, held: contextlib.ExitStack) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    held.callback(os.close, fd)
    return fd


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kill_left_over(path: Path) -> None:
    remove_group(path)
    # Without a control group, find processes of this user that still run in the folder.
    for pid in _processes_in(path):
        logger.warning("killing process %d of machine %s, whose keeper is gone", pid, path.name)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            handle = os.pidfd_open(pid)
            try:
                if _runs_in(pid, path):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def _give_back(path: Path) -> None:
    """Give files that the machine's user created in other owners' folders to this user."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        record = read_record(path)
        if record.uid is None:
            return
        for mount in record.mounts:
            if mount.writable and not mount.source.startswith(f"{path}/"):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    chown_tree(mount.source, os.getuid(), os.getgid(), only=record.uid)


def _processes_in(path: Path) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return [pid for pid in pids if pid != os.getpid() and _runs_in(pid, path)]


def _runs_in(pid: int, path: Path) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid not in (os.geteuid(), *_jail_users(path)):  # noqa: PTH116
            return False
        marked = f"SEER_MACHINE={path.name}".encode()
        if marked in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
        where = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115
        return where == str(path) or where.startswith(f"{path}/")
    except OSError:
        return False


def _jail_users(path: Path) -> tuple[int, ...]:
    try:
        return (path.joinpath("home").stat().st_uid,)
    except OSError:
        return ()
