"""Removes the temporary files and folders of a process after that process has ended.

This is a script that runs in a small process of its own. It reads a pipe from the owner of the
files; the pipe closes when the owner ends, even if the owner is killed. It uses only the standard
library. It is also a module, so that one place decides whether a folder is still in use.
"""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

_RETRY_SECONDS = 10.0
"""How long removal is repeated, because other processes may write to a folder a little longer."""


def remove_abandoned(root: str) -> None:
    """Remove the folders in `root` whose owner has ended."""
    with locked(root), os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not _is_alive(entry.path):
                _remove(entry.path)


@contextmanager
def locked(root: str) -> Generator[None]:
    """Keep other processes from removing a folder in `root` before its owner has locked it."""
    lock = open_lock(root)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def open_lock(folder: str) -> int:
    """Open the file that the owner of a folder keeps locked as long as it lives."""
    return os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_alive(folder: str) -> bool:
    try:
        lock = os.open(f"{folder}/lock", os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False  # the owner was killed before it made the lock, or is removing the folder
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
    """Read paths from standard input, each followed by a zero byte; at the end, remove them."""
    # Bytes after the last zero byte are an incomplete path.
    paths = {os.fsdecode(path) for path in sys.stdin.buffer.read().split(b"\0")[:-1]}
    until = time.monotonic() + _RETRY_SECONDS
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
