"""Shared memory for arrays: the server's slots, and the memfds that callers send.

A slot is a memfd that is mapped and populated once and then reused, because filling new memory
takes about ten times as long as filling existing memory. It is sealed so that only this mapping can
write to it. The caller maps it privately, so its writes to its arrays stay in its own process. A
slot is reused only after the caller has said that its arrays are gone, and nothing in this process
reads it any more.

The caller's word is enough to reuse a slot, because a false one harms only the caller. It is not
enough to count memory: a slot that is given up here exists as long as some process maps it. So the
caller gets a descriptor that was opened only for it, and the kernel knows whether that descriptor,
or a mapping of it, still exists. Until both are gone, the slot counts as the caller's.

A pool belongs to one connection, so no other caller, and no other process of the same caller, can
name its slots. An `Allowance` bounds the bytes of all pools of one caller together.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from seer.errors import ProtocolError

from ._protocol import aligned

if TYPE_CHECKING:
    Register = Callable[[memoryview], Callable[[], None] | None]

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which the mmap module has no name for
# The `fcntl` module has these only if Python was built with recent headers.
_ADD_SEALS = 1033
_GET_SEALS = 1034
_SEAL, _SHRINK, _GROW, _WRITE, _FUTURE_WRITE = 1, 2, 4, 8, 16
_GRAIN = 64 * 1024
_CHUNK = 4 << 20
_LOWEST = 19
_BLOCK = 512
"""Bytes in a block, as `fstat` counts them."""
LATER = 0.015
"""Seconds until a spare slot is made. By then, most arrays are copied into the slot just taken."""
DEFAULT_ALLOWANCE = 4 << 30
MAX_SLOTS = 128
"""Slots of one caller. Each takes two descriptors, and a process may have a thousand."""


class Slot:
    """One segment of shared memory. `holders` counts its readers."""

    __slots__ = (
        "_map",
        "_traceable",
        "_unregister",
        "fd",
        "holders",
        "index",
        "known",
        "lent",
        "size",
        "view",
    )

    def __init__(self, size: int, register: Register | None) -> None:
        self.size = size
        self.index = -1
        self.holders = 0
        self.known = False
        """Whether the peer has its descriptor."""
        self.lent = False
        """Whether the caller is one of the holders."""
        self._traceable = True
        self.fd = os.memfd_create("seer-slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            # Allocating all pages at once and then entering them into the page table takes half the
            # time of page faults, and lets other threads run meanwhile.
            os.posix_fallocate(self.fd, 0, size)
            self._map = mmap.mmap(self.fd, size)
            _populate(self._map, size)
            fcntl.fcntl(self.fd, _ADD_SEALS, _SEAL | _SHRINK | _GROW | _FUTURE_WRITE)
        except BaseException:
            os.close(self.fd)
            raise
        self.view = memoryview(self._map)
        self._unregister = None if register is None else register(self.view)

    def open_for_caller(self) -> int:
        """A new read-only descriptor for the caller; the sender closes it.

        Raises:
            OSError: This process has too many open descriptors.
        """
        try:
            return self._reopen()
        except FileNotFoundError:
            # Without /proc, `is_held` cannot find out whether the caller still has it.
            self._traceable = False
            return os.dup(self.fd)

    def _reopen(self) -> int:
        # Non-blocking, because a peer of the same user could hold a lease on the file.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(f"/proc/self/fd/{self.fd}", flags)

    def is_held(self) -> bool:
        """Whether the caller has the slot open or mapped; False if that cannot be found out.

        The kernel grants a write lease only if nobody else has the file open.
        """
        if not self.known or not self._traceable:
            return False
        try:
            probe = self._reopen()
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            fcntl.fcntl(probe, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            return error.errno == errno.EAGAIN
        finally:
            os.close(probe)
        return False

    def unmap(self) -> None:
        """Remove this process's mapping; the caller's mappings stay valid."""
        if self._unregister is not None:
            self._unregister()
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            # A digest or a reply still has a view of it. The memory is freed with that view.
            del self.view, self._map

    def close(self) -> None:
        """Close its descriptor, after `unmap`."""
        os.close(self.fd)


def _populate(memory: mmap.mmap, size: int) -> None:
    try:
        # `madvise` holds the GIL, so each piece should take only about a millisecond.
        for start in range(0, size, _CHUNK):
            memory.madvise(_POPULATE_WRITE, start, min(_CHUNK, size - start))
    except OSError:
        # Linux before 5.14: the pages are entered one by one on first use.
        return


class Allowance:
    """How many bytes of slots one caller may hold, over all its connections.

    Attributes:
        limit: The maximum number of bytes.
        used: The bytes of all slots, including those that only the caller still holds.
    """

    __slots__ = ("_closed", "_count", "_lock", "_strays", "limit", "used")

    def __init__(self, limit: int = DEFAULT_ALLOWANCE) -> None:
        self.limit = limit
        self.used = 0
        self._count = 0
        self._closed = False
        self._strays: list[Slot] = []
        """Slots that were given up here and that the caller still holds."""
        self._lock = allocate_lock()

    def take(self, size: int) -> bool:
        """Reserve `size` bytes for a slot; False if there is no room."""
        with self._lock:
            if not self.has_room(size):
                self._look_at_strays()
                if not self.has_room(size):
                    return False
            self.used += size
            self._count += 1
            return True

    def has_room(self, size: int) -> bool:
        """Whether a slot of `size` bytes fits."""
        return self.used + size <= self.limit and self._count < MAX_SLOTS

    def _look_at_strays(self) -> None:
        strays, self._strays = self._strays, []
        for slot in strays:
            if not self._closed and slot.is_held():
                self._strays.append(slot)
            else:
                slot.close()
                self._give(slot.size)

    def _give(self, size: int) -> None:
        self.used -= size
        self._count -= 1

    def give(self, size: int) -> None:
        """Return what was reserved for a slot that was not made."""
        with self._lock:
            self._give(size)

    def retire(self, slots: list[Slot]) -> None:
        """Give up slots; each counts until the caller no longer holds it."""
        for slot in slots:
            slot.unmap()
        with self._lock:
            self._strays += slots
            self._look_at_strays()

    def close(self) -> None:
        """Give up all slots, even those that are held, because the caller is gone."""
        with self._lock:
            self._closed = True
            self._look_at_strays()


class SlotPool:
    """The slots of one connection."""

    def __init__(self, allowance: Allowance, spares: Spares) -> None:
        self._allowance = allowance
        self._spares = spares
        self._lock = allocate_lock()
        self._slots: dict[int, Slot] = {}
        self._free: list[Slot] = []
        self._next = 0
        self._dropped: list[int] = []
        self._closed = False

    def take(self, size: int) -> Slot | None:
        """A slot of at least `size` bytes; None if the caller has too many.

        It has two holders: the caller, until `release`, and the code that fills it, until `let_go`.
        So it stays valid if the connection is closed meanwhile.
        """
        size = max(aligned(size, _GRAIN), _GRAIN)
        with self._lock:
            slot = self._find(size)
            if slot is not None:
                self._free.remove(slot)
                slot.holders = 1
        if slot is None:
            slot = self._make(size)
            if slot is None:
                return None
        with self._lock:
            if not self._closed:
                slot.lent = True
                slot.holders += 1
            wanted = self._find(size) is None and not self._closed
        if wanted:
            self._spares.want(self, size)
        return slot

    def _find(self, size: int) -> Slot | None:
        fitting = [s for s in self._free if size <= s.size <= 2 * size]
        return min(fitting, key=lambda s: s.size) if fitting else None

    def _make(self, size: int) -> Slot | None:
        if not self._allowance.take(size):
            self._trim(size)
            if not self._allowance.take(size):
                return None
        try:
            slot = Slot(size, self._spares.register)
        except OSError:
            # Without memory, descriptors or memfds, the bytes are sent over the socket.
            self._allowance.give(size)
            return None
        with self._lock:
            if not self._closed:
                slot.index = self._next
                slot.holders = 1
                self._next += 1
                self._slots[slot.index] = slot
                return slot
        self._allowance.retire([slot])
        return None

    def _trim(self, size: int) -> None:
        """Close free slots of other sizes until `size` more bytes fit or no free slot is left."""
        while not self._allowance.has_room(size):
            with self._lock:
                if not self._free:
                    return
                slot = self._free.pop(0)
                del self._slots[slot.index]
                if slot.known:
                    self._dropped.append(slot.index)
            self._allowance.retire([slot])

    def add_spare(self, size: int) -> None:
        """Make a free slot in advance, unless there is one or the caller has too many."""
        with self._lock:
            if self._closed or self._find(size) is not None:
                return
        slot = self._make(size)
        if slot is not None:
            self.let_go(slot)

    def let_go(self, slot: Slot) -> None:
        """Remove a holder of `slot`; without holders it is free."""
        with self._lock:
            slot.holders -= 1
            if slot.holders:
                return
            if not self._closed:
                self._free.append(slot)
                return
        self._allowance.retire([slot])

    def hold(self, slot: Slot) -> None:
        """Add a holder of `slot`."""
        with self._lock:
            slot.holders += 1

    def release(self, index: int) -> bool:
        """Take a slot back from the caller; False if the caller does not have it."""
        with self._lock:
            slot = self._slots.get(index)
            if slot is None or not slot.lent:
                return False
            slot.lent = False
        self.let_go(slot)
        return True

    def take_dropped(self) -> bytes:
        """The header line with the slots that the caller can unmap; empty if there are none."""
        if not self._dropped:
            return b""
        with self._lock:
            dropped, self._dropped = self._dropped[:500], self._dropped[500:]
        return b"seer-dropped: %s\r\n" % b",".join(b"%d" % index for index in dropped)

    def close(self) -> None:
        """Free all slots; a slot that is being read is freed when its reader is done."""
        with self._lock:
            self._closed = True
            unused: list[Slot] = []
            for slot in self._slots.values():
                if slot.lent:
                    slot.lent = False
                    slot.holders -= 1
                if not slot.holders:
                    unused.append(slot)
            self._slots = {}
            self._free = []
        self._allowance.retire(unused)


class Spares:
    """A thread that makes slots in advance, so that a caller that keeps its arrays does not wait
    for new memory each time. The thread starts when the first slot is wanted."""

    def __init__(self, register: Register | None = None) -> None:
        self.register = register
        self._wanted: SimpleQueue[tuple[SlotPool, int]] = SimpleQueue()
        self._started = False

    def want(self, pool: SlotPool, size: int) -> None:
        """Make a free slot of `size` bytes in `pool` soon."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._work, name="seer-spares", daemon=True).start()
        self._wanted.put((pool, size))

    def _work(self) -> None:
        # The lowest priority, for this thread only: copying arrays is more urgent.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
        while True:
            pool, size = self._wanted.get()
            time.sleep(LATER)
            pool.add_spare(size)
            del pool


def map_sealed(fd: int, limit: int) -> mmap.mmap:
    """Map a memfd of a caller privately, so that writes to the mapping stay here.

    Raises:
        ProtocolError: It is not a memfd that is sealed against writing, shrinking and growing, so
            its sender could change or shorten it while it is read; it is too large; or it has
            holes, which would take memory of this process when they are read.
    """
    try:
        seals = fcntl.fcntl(fd, _GET_SEALS)
    except OSError:
        raise ProtocolError("a descriptor that came with the request is not a memfd") from None
    if seals & (_SHRINK | _GROW | _WRITE) != _SHRINK | _GROW | _WRITE:
        raise ProtocolError(
            "a memfd that came with the request is not sealed against write, shrink and grow"
        )
    found = os.fstat(fd)
    size = found.st_size
    if not 0 < size <= limit:
        raise ProtocolError(f"a memfd has {size} bytes; 1 to {max(limit, 0)} are accepted")
    # The seal against writing also prevents punching holes, so this stays true.
    if found.st_blocks * _BLOCK < size:
        raise ProtocolError(
            f"a memfd of {size} bytes has memory for only {found.st_blocks * _BLOCK} of them: fill"
            " it, because holes are not accepted"
        )
    return mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
