"""Turns of tests that run in several workers: many at a time, or one alone.

Jails that root starts have users of their own. Jails that an ordinary user starts share that user,
so a test that uses up resources that the kernel counts per user makes jails of other workers' tests
fail.
"""

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def turn(folder: Path, *, alone: bool) -> Generator[None]:
    """Wait for a turn, and hold it.

    Args:
        folder: The folder of the lock files, the same for all workers.
        alone: Wait until no other turn is held, and let no other begin.
    """
    # A test that waits to run alone holds the gate, so that no new turns delay it.
    with contextlib.ExitStack() as held:
        with _locked(folder / "gate", fcntl.LOCK_EX):
            kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
            held.enter_context(_locked(folder / "turn", kind))
        yield


@contextlib.contextmanager
def _locked(path: Path, kind: int) -> Generator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, kind)
        try:
            yield
        finally:
            # A process that a test forked may still have the descriptor, and with it the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)
