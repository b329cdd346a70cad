"""Seer's cache: its secret key, locks between processes, and the removal of old entries."""

import asyncio
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from seer._paths import cache_dir
from seer.providers.local._record import is_mounted

_KEY_BYTES = 32


def cache_key() -> bytes:
    """A random key of this cache.

    Folder names that an agent might see, for example in a mount table, are hashed with it, so that
    the agent cannot compare them with hashes of its guesses.
    """
    descriptor = os.open(cache_dir() / "key", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        key = os.pread(descriptor, _KEY_BYTES, 0)
        if len(key) < _KEY_BYTES:
            key = secrets.token_bytes(_KEY_BYTES)
            os.pwrite(descriptor, key, 0)
        return key
    finally:
        os.close(descriptor)


@asynccontextmanager
async def locked(path: Path) -> AsyncGenerator[None]:
    """Hold the lock file `path`. Other tasks, threads and processes wait for it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        wait = 0.01
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Polling instead of blocking a thread keeps the wait cancellable.
                await asyncio.sleep(wait)
                wait = min(wait * 1.5, 0.2)
        yield
    finally:
        os.close(descriptor)


def draft_prefix(key: str) -> str:
    """The name prefix of the folders in which the cache entry `key` is being made."""
    return f"draft-{key}"


def prune(root: Path, *, life: float, is_expired: Callable[[Path], bool] | None = None) -> None:
    """Remove entries that have not been used recently, and drafts of killed processes. Blocks.

    A process holds the lock file `key.lock` while it makes or uses the entry `key`. An entry stays
    while its lock is held or a machine has it mounted.

    Args:
        root: The folder of the entries.
        life: Seconds that an entry is kept after it was last used.
        is_expired: Whether to remove an older entry; by default, all older entries are removed.
    """
    for folder in list(root.iterdir()):
        if folder.is_symlink() or not folder.is_dir():
            continue
        is_draft = folder.name.startswith("draft-")
        key = folder.name.split("-")[1] if is_draft else folder.name
        descriptor = os.open(root / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_draft:
                # Checked under the lock, because its last holder may just have used the entry.
                if time.time() - folder.lstat().st_mtime < life or is_mounted(folder):
                    continue
                if is_expired is not None and not is_expired(folder):
                    continue
                doomed = root / f"{draft_prefix(key)}-{secrets.token_hex(6)}"
                folder = folder.rename(doomed)
            shutil.rmtree(folder, ignore_errors=True)
        except (BlockingIOError, FileNotFoundError):
            continue
        finally:
            os.close(descriptor)
