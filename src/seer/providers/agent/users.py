"""Users of a machine with several users: look them up, and become one in a fork of the steward."""

from __future__ import annotations

import errno
import os


class User:
    """One of a machine's users."""

    def __init__(self, uid: int, gid: int, name: bytes = b"", home: bytes = b"") -> None:
        self.uid = uid
        self.gid = gid
        self.name = name
        self.home = home


def find_user(wanted: bytes) -> User:
    """Find a user by name or number in the machine's own /etc/passwd.

    Raises:
        OSError: There is no such user.
    """
    with open("/etc/passwd", "rb") as file:
        for line in file:
            fields = line.rstrip(b"\n").split(b":")
            if len(fields) == 7 and wanted in (fields[0], fields[2]):
                return User(int(fields[2]), int(fields[3]), fields[0], fields[5])
    raise OSError(errno.EINVAL, "the machine has no such user", wanted)


def become_user(user: User) -> None:
    """Become a user permanently. Only root keeps its capabilities."""
    os.setgroups([])
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
