"""The secret key of Seer's cache, and locks that hold between processes."""

import asyncio
import fcntl
import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from seer._places import cache_dir

_KEY_BYTES = 32


def cache_key() -> bytes:
    """A random key of this cache.

    Names of folders that an agent could come to see (in a mount table, say) are keyed with it, so
    that they cannot be compared with the hashes of guesses.
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
    """Hold the lock file `path`; other tasks, threads and processes wait their turn."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        wait = 0.01
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Asking again, rather than blocking a thread, keeps the wait cancellable.
                await asyncio.sleep(wait)
                wait = min(wait * 1.5, 0.2)
        yield
    finally:
        os.close(descriptor)
