"""Compares a machine's usage with its limits: memory, processes, bytes on disk.

With a control group, the kernel enforces the limits on memory and processes, and the watchdog only
reports kills. Without one, the watchdog sums over the process tree. It always counts bytes and
files on disk itself, in small steps, so that a machine with a million files does not block its
keeper. While nothing changes, it counts less and less often. If the disk's free space drops, it
counts again sooner.
"""

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
"""After a count of the disk, the watchdog pauses for this multiple of the count's duration."""
_LONGEST_REST = 60.0
"""While the count stays the same, the pause doubles up to this many seconds."""


class Watchdog:
    """Watches one machine from outside."""

    def __init__(
        self,
        *,
        memory: int | None,
        processes: int | None,
        disk: int | None,
        files: int | None,
        writable: list[bytes],
        group: Cgroup | None,
    ) -> None:
        self._memory = memory
        self._processes = processes
        self._disk = disk
        self._files = files
        self._writable = writable
        self._group = group
        self._count: Iterator[tuple[int, int]] | None = None
        self._count_time = 0.0
        self._soonest = self._next_count = 0.0
        self._pause = 0.0
        self._last = (0, 0)
        """Bytes and files at the last complete count."""
        self._room: list[tuple[int, int]] = []
        """Free bytes and files of each disk when that count began."""
        self.interval: float | None = None if memory is processes is disk is None else _CALM
        """Seconds until the next check; None without limits."""

    def look(self, root: int) -> str | None:
        """Why the machine with the first process `root` must end; None if no limit is exceeded."""
        self.interval = _CALM
        return self._look_at_tree(root) or self._look_at_disk(root)

    def out_of_memory(self) -> str | None:
        """The reason if the kernel killed a process for exceeding the memory limit; else None."""
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
        # Counting shared pages only once is expensive, so do that only if it matters.
        if resident > self._memory and sum(map(_proportional, pids)) > self._memory:
            return self._over_memory()
        return None

    def _look_at_disk(self, root: int) -> str | None:
        if self._disk is None:
            return None
        now = time.monotonic()
        if self._count is None:
            if now < self._soonest or (now < self._next_count and not self._lost_room()):
                return None
            self._room = _room(self._writable)
            self._count = _count_files(self._writable, [root, *tree.descendants(root)])
            self._count_time = 0.0
        found = (0, 0)
        for found in self._count:
            if self._over(found) or time.monotonic() - now > _SLICE:
                break
        else:
            self._count = None
        self._count_time += time.monotonic() - now
        if self._over(found):
            return self._over(found)
        if self._count is not None:
            self.interval = _ALERT
            return None
        least = max(_CALM, _REST * self._count_time)
        unchanged = found == self._last
        self._pause = max(min(self._pause * 2, _LONGEST_REST), least) if unchanged else least
        self._soonest = now + least
        self._next_count = now + self._pause
        self._last = found
        return None

    def _over(self, found: tuple[int, int]) -> str | None:
        if self._disk is not None and found[0] > self._disk:
            return f"disk limit of {_size(self._disk)} exceeded"
        if self._files is not None and found[1] > self._files:
            return f"limit of {self._files} files exceeded (it follows from the disk limit)"
        return None

    def _lost_room(self) -> bool:
        """Whether the disks lost over a quarter of the space that the machine may still use."""
        spare_bytes = (self._disk or 0) - self._last[0]
        spare_files = (self._files or 0) - self._last[1]
        return any(
            before[0] - now[0] > spare_bytes // 4 or before[1] - now[1] > spare_files // 4
            for before, now in zip(self._room, _room(self._writable), strict=False)
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _statistics(pid: int) -> tuple[int, int]:
    """Resident pages and threads of a process; zeros if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return max(int(fields[21]), 0), int(fields[17])
    except (OSError, ValueError, IndexError):
        return 0, 0


def _proportional(pid: int) -> int:
    """The memory of a process in bytes. Shared pages are divided among their processes."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return _statistics(pid)[0] * _PAGE
    return 0


def _room(folders: list[bytes]) -> list[tuple[int, int]]:
    """Free bytes and files of the disk that each folder is on."""
    found: list[tuple[int, int]] = []
    for folder in folders:
        try:
            disk = os.statvfs(folder)
        except OSError:
            continue
        found.append((disk.f_bavail * disk.f_frsize, disk.f_favail))
    return found


def _count_files(folders: list[bytes], pids: list[int]) -> Iterator[tuple[int, int]]:
    """Count bytes and files on disk in small steps, and yield the sums so far."""
    total = files = 0
    seen: set[tuple[int, int]] = set()
    for size in _unlinked(pids, seen):
        total += size
        files += 1
        yield total, files
    waiting = list(folders)
    while waiting:
        folder = waiting.pop()
        try:
            # This opens only folders, and never follows a link.
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
                    files += 1
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(os.path.join(folder, os.fsencode(entry.name)))
                    yield total, files
        except OSError:
            continue
        finally:
            os.close(fd)


def _unlinked(pids: list[int], seen: set[tuple[int, int]]) -> Iterator[int]:
    """The sizes of open files that were deleted."""
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
