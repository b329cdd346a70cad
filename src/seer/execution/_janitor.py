"""Removes the private folders of a process that was killed before it could do so itself.

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
from contextlib import contextmanager

_PATIENCE = 10.0
"""Seconds; what still writes into a folder at its owner's end stops within moments."""


def sweep(root: str) -> None:
    """Remove folders whose process has ended without doing so."""
    with locked(root), os.scandir(root) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                continue
            if not _is_alive(entry.path):
                shutil.rmtree(entry.path, ignore_errors=True)


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
    except FileNotFoundError:
        return False  # killed while making it, or just now removing it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def main() -> None:
    """Read folders from standard input, one a line; at its end remove those that are left."""
    folders = {line.rstrip("\n") for line in sys.stdin}
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        folders = {folder for folder in folders if os.path.lexists(folder)}
        if not folders:
            return
        for root in {os.path.dirname(folder) for folder in folders}:  # noqa: PTH120
            sweep(root)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
