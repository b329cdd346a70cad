"""Users for the jails that root starts: one for each machine, for as long as it lives.

The kernel counts much per user: descriptors in flight, pending signals, processes, inotify
instances. Two machines with one user could use up each other's share.

A user is taken by a lock on a file of its number. Every process with a descriptor of that file
holds the user, and the kernel frees it with the last of them. All processes of root on one host use
the same files, also with different state folders.
"""

import fcntl
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from seer.errors import IsolationError
from seer.isolation._system import JAIL_UIDS

MACHINE_UIDS = JAIL_UIDS[16:-16]
"""Those that machines get; the rest of the block is for jails that are not machines."""
_FOLDER = Path("/run/seer-users")


def take_user(folders: Iterable[Path] = ()) -> tuple[int, int]:
    """A user that no other machine has, and the descriptor that holds it.

    Args:
        folders: Where the machine will write, beside its own folder. A machine that lives and
            writes to one of them too shares its user, because each must be able to write there.

    Raises:
        IsolationError: All of them are in use.
    """
    found = [folder.stat() for folder in folders]
    written = {f"{status.st_dev}:{status.st_ino}" for status in found}
    try:
        _FOLDER.mkdir(mode=0o700, exist_ok=True)
        everyone = _open("lock")
    except OSError as error:
        raise IsolationError(
            f"a user for the machine cannot be taken, because {str(_FOLDER)!r} cannot be written "
            f"to ({error.strerror}); make /run writable"
        ) from None
    # Anywhere among them, so that one just freed is seldom taken at once.
    start = secrets.randbelow(len(MACHINE_UIDS))
    order = [*MACHINE_UIDS[start:], *MACHINE_UIDS[:start]]
    order[:0] = [status.st_uid for status in found if status.st_uid in MACHINE_UIDS]
    try:
        # Two at once could both see a lock free that one of them is about to have.
        fcntl.flock(everyone, fcntl.LOCK_EX)
        for uid in order:
            fd = _open(str(uid))
            if _take(fd, written):
                return uid, fd
            os.close(fd)
    finally:
        os.close(everyone)
    raise IsolationError(
        f"all {len(MACHINE_UIDS)} users for machines ({MACHINE_UIDS[0]} to {MACHINE_UIDS[-1]}) are "
        f"in use on this host; end some machines first (`seer ps`)"
    )


def _take(fd: int, written: set[str]) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        others = set(os.pread(fd, 65536, 0).decode().split())
        if written.isdisjoint(others):
            return False
        written = written | others
    os.ftruncate(fd, 0)
    os.pwrite(fd, " ".join(sorted(written)).encode(), 0)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return True


def _open(name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(_FOLDER / name, flags, 0o600)
