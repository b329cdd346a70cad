"""The client's shared memory: slots of the server's pool, and memfds to send.

A slot is mapped privately: its arrays are writable, and writes stay in this process. The server
reuses a slot only after this side has released it, which happens when its last array is gone.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import weakref
from collections import deque
from typing import Any

from ..wire._protocol import SLOT_ALIGN, Piece, WireError, aligned

_ADD_SEALS = 1033
_SEALS = 1 | 2 | 4 | 8  # seal, shrink, grow, write
_PRESENT_OR_SWAPPED = 3 << 62
_FILE_PAGE = 1 << 61
_PAGEMAP_SCAN = 0xC0606610
_IS_FILE, _IS_PRESENT, _IS_SWAPPED = 4, 8, 16
_forbidden = False
"""Whether a jail forbids memfds; set at the first attempt to make one."""


class Mapping:
    """A mapped slot. `lend` hands out its memory, and notices when nothing uses it any more."""

    __slots__ = ("_used", "memory", "size", "slot")

    def __init__(self, slot: int, fd: int, size: int) -> None:
        self.slot = slot
        self.size = size
        self._used = False
        try:
            if os.fstat(fd).st_size < size:
                raise WireError(f"slot {slot} is shorter than the {size} bytes it must have")
            self.memory = mmap.mmap(
                fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
        finally:
            os.close(fd)

    def lend(self, released: deque[int]) -> Any:
        """The memory as a buffer. When it and its views are gone, `released` gets the slot."""
        if self._used:
            self._renew()
        self._used = True
        base = _weakly_referable(self.memory, self.size)
        weakref.finalize(base, released.append, self.slot).atexit = False
        return base

    def _renew(self) -> None:
        """Drop the pages that this process wrote to, so that the server's new bytes show."""
        if _has_own_pages(self.memory, self.size):
            self.memory.madvise(mmap.MADV_DONTNEED)


def _weakly_referable(memory: mmap.mmap, size: int) -> Any:
    # A view of a view keeps the underlying object alive only if that is not a memoryview.
    try:
        import numpy
    except ImportError:
        import ctypes

        return (ctypes.c_ubyte * size).from_buffer(memory)
    return numpy.frombuffer(memory, "u1")


def _has_own_pages(memory: mmap.mmap, size: int) -> bool:
    """Whether some page is a private copy, made by a write; True if that is not known."""
    try:
        import numpy

        fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except (ImportError, OSError):
        return True
    address: int = numpy.frombuffer(memory, "u1").ctypes.data
    count = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    try:
        found = numpy.zeros(3, "u8")
        fields = (96, 0, address, address + count * mmap.PAGESIZE, 0, found.ctypes.data, 1, 1)
        which = (_IS_FILE, _IS_FILE, _IS_PRESENT | _IS_SWAPPED, _IS_PRESENT)
        # The kernel stops at the first such page, which is much faster than reading the page map.
        return fcntl.ioctl(fd, _PAGEMAP_SCAN, bytearray(struct.pack("12Q", *fields, *which))) > 0
    except OSError:
        # Linux before 6.7.
        return _finds_own(fd, address, count)
    finally:
        os.close(fd)


def _finds_own(fd: int, address: int, count: int) -> bool:
    """Like `_has_own_pages`, for older kernels: reads the whole page map."""
    import numpy

    try:
        entries = numpy.frombuffer(os.pread(fd, count * 8, address // mmap.PAGESIZE * 8), "<u8")
    except OSError:
        return True
    own = (entries & _PRESENT_OR_SWAPPED).astype(bool) & ~(entries & _FILE_PAGE).astype(bool)
    return len(entries) != count or bool(own.any())


def sealed_memfd(buffers: list[Any]) -> tuple[int, list[Piece]] | None:
    """One sealed memfd with all of `buffers`, and the place of each in it.

    Returns:
        None if it cannot be made: a jail forbids it, or descriptors or memory are short.
    """
    global _forbidden
    if _forbidden:
        return None
    try:
        fd = os.memfd_create("seer-argument", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        _forbidden = error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS)
        return None
    pieces: list[Piece] = []
    end = 0
    try:
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            end = aligned(end, SLOT_ALIGN)
            pieces.append(Piece("m", 0, end, len(view)))
            done = 0
            # Writing takes half the time of filling a new mapping.
            while done < len(view):
                done += os.pwrite(fd, view[done : done + (64 << 20)], end + done)
            end += len(view)
        fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            return None
        raise
    return fd, pieces
