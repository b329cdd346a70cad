"""User ids for the jails that root starts: one for each running machine.

The kernel counts many resources per user: descriptors in flight, pending signals, processes,
inotify instances. Two machines with one user could use up each other's share.

A lock on the file named by its number reserves a user. Every process with a descriptor of that file
holds the user, and the kernel frees the user when the last such process ends. All processes of root
on one host use the same files, even with different state folders.
"""

import fcntl
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from seer.errors import IsolationError
from seer.isolation._system import JAIL_UIDS

MACHINE_UIDS = JAIL_UIDS[16:-16]
"""The ids for machines. The rest of the block is for jails that are not machines."""
_FOLDER = Path("/run/seer-users")


def take_user(folders: Iterable[Path] = ()) -> tuple[int, int]:
    """Reserve a user that no other machine has. Returns its id and the descriptor that holds it.

    Args:
        folders: Folders outside its own that the machine will write to. Machines that write to the
            same folder share a user, because each of them must be able to write there.

    Raises:
        IsolationError: All users are in use.
    """
    found = [folder.stat() for folder in folders]
    written = {f"{status.st_dev}:{status.st_ino}" for status in found}
    try:
        _FOLDER.mkdir(mode=0o700, exist_ok=True)
        everyone = _open("lock")
    except OSError as error:
        raise IsolationError(
            f"a user for the machine cannot be reserved, because {str(_FOLDER)!r} is not "
            f"writable ({error.strerror}); make /run writable"
        ) from None
    # Start at a random id, so that a recently freed id is rarely reused at once.
    start = secrets.randbelow(len(MACHINE_UIDS))
    order = [*MACHINE_UIDS[start:], *MACHINE_UIDS[:start]]
    order[:0] = [status.st_uid for status in found if status.st_uid in MACHINE_UIDS]
    try:
        # Without this lock, two processes could both take the same user.
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
