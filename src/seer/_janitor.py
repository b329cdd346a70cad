"""Removes what a process that was killed could not remove itself: its transient files and folders.

A tiny process beside the one that owns them: it waits at a pipe for its owner's end, which comes
whatever the owner dies of. A script of the standard library alone, and also a module: what tells
a live folder from a leftover stands here once.
"""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

_PATIENCE = 10.0
"""Seconds; what still writes into a folder at its owner's end stops within moments."""


def sweep(root: str) -> None:
    """Remove folders in `root` whose process has ended without doing so."""
    with locked(root), os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not _is_alive(entry.path):
                _remove(entry.path)


@contextmanager
def locked(root: str) -> Generator[None]:
    """Keep other processes from sweeping a folder that is only half made."""
    lock = open_lock(root)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def open_lock(folder: str) -> int:
    """The file whose lock a folder's owner holds as long as it lives."""
    return os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_alive(folder: str) -> bool:
    try:
        lock = os.open(f"{folder}/lock", os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False  # has none, was killed while making it, or is just now removing it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _remove(path: str) -> None:
    with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
        os.unlink(path)  # noqa: PTH108
    shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    """Read paths from standard input, each with a zero byte behind it; at its end remove them."""
    # What follows the last zero byte was cut off, and so is no path of the owner's.
    paths = {os.fsdecode(path) for path in sys.stdin.buffer.read().split(b"\0")[:-1]}
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        paths = {path for path in paths if os.path.lexists(path)}
        if not paths:
            return
        for path in paths:
            if not _is_alive(path):
                _remove(path)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
