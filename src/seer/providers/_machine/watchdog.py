"""What a machine uses, against what it may use: memory, processes, bytes on disk.

With a control group the kernel keeps memory and processes, and this only reports that it did.
Without one, the sums over the process tree are taken here. Bytes on disk are always counted here,
a slice at a time, so that a machine with a million files does not hold up its keeper.
"""

# pathlib would be most of what this process imports.
# ruff: noqa: PTH116, PTH118, PTH123, PTH208
from __future__ import annotations

import os
import stat
import time

from . import tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from seer.isolation._cgroup import Cgroup

_PAGE = os.sysconf("SC_PAGE_SIZE")
_SLICE = 0.02
_CALM, _ALERT = 0.5, 0.05
_REST = 10
"""A count of the disk is followed by a pause of this many times its own length."""


class Watchdog:
    """Looks at one machine from outside."""

    def __init__(
        self,
        *,
        memory: int | None,
        processes: int | None,
        disk: int | None,
        writable: list[bytes],
        group: Cgroup | None,
    ) -> None:
        self._memory = memory
        self._processes = processes
        self._disk = disk
        self._writable = writable
        self._group = group
        self._count: Iterator[int] | None = None
        self._count_time = 0.0
        self._next_count = 0.0
        self.interval: float | None = None if memory is processes is disk is None else _CALM
        """Seconds until the next look; None when nothing is limited."""

    def look(self, root: int) -> str | None:
        """Why the machine whose first process is `root` must end; None while it may go on."""
        self.interval = _CALM
        return self._look_at_tree(root) or self._look_at_disk(root)

    def out_of_memory(self) -> str | None:
        """Whether the kernel has killed something for the machine's memory limit."""
        if self._group is None or self._memory is None:
            return None
        return self._over_memory() if self._group.usage().get("oom_kills", 0) else None

    def _over_memory(self) -> str:
        return f"memory limit of {_size(self._memory or 0)} exceeded"

    def _look_at_tree(self, root: int) -> str | None:
        if self._group is not None:
            return self.out_of_memory()
        if self._memory is None and self._processes is None:
            return None
        pids = [root, *tree.descendants(root)]
        resident = threads = 0
        for pid in pids:
            pages, tasks = _statistics(pid)
            resident += pages * _PAGE
            threads += tasks
        if self._processes is not None and threads > self._processes:
            return f"limit of {self._processes} processes exceeded ({threads})"
        if self._memory is None:
            return None
        if resident > self._memory // 2:
            self.interval = _ALERT
        # Pages that several processes share count once; that sum is dear, so only when it matters.
        if resident > self._memory and sum(map(_proportional, pids)) > self._memory:
            return self._over_memory()
        return None

    def _look_at_disk(self, root: int) -> str | None:
        if self._disk is None:
            return None
        now = time.monotonic()
        if self._count is None:
            if now < self._next_count:
                return None
            self._count = _count_bytes(self._writable, [root, *tree.descendants(root)])
            self._count_time = 0.0
        total = 0
        for total in self._count:
            if total > self._disk or time.monotonic() - now > _SLICE:
                break
        else:
            self._count = None
        spent = time.monotonic() - now
        self._count_time += spent
        if total > self._disk:
            return f"disk limit of {_size(self._disk)} exceeded"
        if self._count is None:
            self._next_count = now + max(_CALM, _REST * self._count_time)
        else:
            self.interval = _ALERT
        return None


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _statistics(pid: int) -> tuple[int, int]:
    """Resident pages and threads of a process; zeros when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return max(int(fields[21]), 0), int(fields[17])
    except (OSError, ValueError, IndexError):
        return 0, 0


def _proportional(pid: int) -> int:
    """Bytes of a process, shared pages divided by the number of their users."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return _statistics(pid)[0] * _PAGE
    return 0


def _count_bytes(folders: list[bytes], pids: list[int]) -> Iterator[int]:
    """Yield the growing sum of bytes on disk, in small steps."""
    total = 0
    seen: set[tuple[int, int]] = set()
    for size in _unlinked(pids, seen):
        total += size
        yield total
    waiting = list(folders)
    while waiting:
        folder = waiting.pop()
        try:
            # Nothing here is opened but folders, and a link is never one.
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                        if (found.st_dev, found.st_ino) in seen:
                            continue
                        seen.add((found.st_dev, found.st_ino))
                    total += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(os.path.join(folder, os.fsencode(entry.name)))
                    yield total
        except OSError:
            continue
        finally:
            os.close(fd)


def _unlinked(pids: list[int], seen: set[tuple[int, int]]) -> Iterator[int]:
    """Sizes of files that have no name any more but are still open."""
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                found = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            key = (found.st_dev, found.st_ino)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and key not in seen:
                seen.add(key)
                yield found.st_blocks * 512
