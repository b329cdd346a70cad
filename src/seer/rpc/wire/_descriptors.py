"""File descriptors that are passed with a message over a Unix socket."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ._protocol import MAX_DESCRIPTORS

if TYPE_CHECKING:
    Ancillary = list[tuple[int, int, bytes]]

SPACE = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
"""The size of the ancillary data for the maximum number of descriptors, for `recvmsg`."""
LOST = socket.MSG_CTRUNC
"""The flag for a message that lost descriptors, because this process has too many open."""


def rights(descriptors: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    """The ancillary data that passes descriptors, for `sendmsg`."""
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


def received(ancillary: Ancillary) -> list[int]:
    """The descriptors in the ancillary data of a received message; the taker closes them."""
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            found.extend(numbers)
    return found


def duplicates(descriptors: Iterable[int]) -> list[int]:
    """New descriptors of the same files.

    Raises:
        OSError: There are too many; the new ones are closed again.
    """
    made: list[int] = []
    try:
        for fd in descriptors:
            made.append(os.dup(fd))
    except OSError:
        close_all(made)
        raise
    return made


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in descriptors:
        os.close(fd)


def close_each(descriptors: list[int]) -> None:
    """Close descriptors and remove them from the list, so that none is closed twice."""
    while descriptors:
        os.close(descriptors.pop())
