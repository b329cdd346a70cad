"""Follows, and the files in which their lines wait until the controller takes them.

A follow is a run's subscription to the calls of some callers. Its lines and large values are in its
own folder. The controller reads them, and what it has taken is removed. The interface process
writes to the folder and the supervisor reads it. The supervisor writes only while there is no
interface process.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

ABANDONED = 600.0
"""Seconds after which a follow that nobody reads is ended."""
SEGMENT = 64 << 20
"""Bytes of lines in one file, after which a new file begins."""
_ENDING = ".jsonl"


class Follow:
    """One follow.

    Attributes:
        id: Its name, and the name of its folder.
        names: The names of the callers whose calls it gets.
        prefix: It also gets the calls of callers whose names begin with this, unless another
            follow names them or the prefix of an older follow matches too; empty for none.
        lost: How many calls could not be recorded.
        why: Why the last of them could not be recorded.
        taken: The offset up to which its lines were taken.
        asked: When the controller last asked for it (monotonic).
        began_at: When it began (monotonic).
        sealed_at: When its run ended; calls that were made later are not part of it.
        complete: Whether all its calls have ended and were written, so a crash costs none of them.
    """

    __slots__ = (
        "asked",
        "began_at",
        "complete",
        "id",
        "lost",
        "names",
        "prefix",
        "sealed_at",
        "taken",
        "why",
    )

    def __init__(self, identifier: str, names: Iterable[str], prefix: str) -> None:
        self.id = identifier
        self.names = set(names)
        self.prefix = prefix
        self.lost = 0
        self.why = ""
        self.taken = 0
        self.asked = self.began_at = time.monotonic()
        self.sealed_at = float("inf")
        self.complete = False

    def lose(self, calls: int, why: str) -> None:
        """Count calls that could not be recorded."""
        self.lost += calls
        self.why = why


def followers(follows: dict[str, Follow], caller: str) -> list[str]:
    """The ids of the follows that get the calls of a caller.

    If several follows name a caller, each gets its calls: two runs may share a session. If only
    prefixes match (the user's own script), the first of these follows gets them.
    """
    named = [follow.id for follow in follows.values() if caller in follow.names]
    if named:
        return named
    matching = (f.id for f in follows.values() if f.prefix and caller.startswith(f.prefix))
    return list(matching)[:1]


class Lasting(Protocol):
    """A follow, or the `Track` that writes its lines."""

    began_at: float
    sealed_at: float


_Lasting = TypeVar("_Lasting", bound=Lasting)


def owners(candidates: list[_Lasting], made: float, unfollowed_at: float) -> list[_Lasting] | None:
    """The follows that get one call of a caller.

    Args:
        candidates: The follows of this caller.
        made: When the call was made (monotonic).
        unfollowed_at: When the last finished run that followed the caller ended.

    Returns:
        The follows whose runs the call was made in, or else those that began after it. None if the
        call's run has ended: that run has counted the call as missing.
    """
    own = [follow for follow in candidates if follow.began_at <= made <= follow.sealed_at]
    if own:
        return own
    if made <= unfollowed_at:
        return None
    return [follow for follow in candidates if made < follow.began_at]


def given(body: bytes) -> Any:
    """The arguments of a call for its line: `[args, kwargs]`, or the first bytes if not JSON.

    Args:
        body: The text of the arguments, as it arrived.
    """
    try:
        found: Any = json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return {"malformed": body[:2000].decode("latin-1")}
    if found.__class__ is dict:
        found = [found.get("args", []), found.get("kwargs", {})]
    return found


def segments(folder: str) -> list[int]:
    """The offsets at which the files of a follow begin."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 (import time)
    except OSError:
        return []
    return sorted(int(name[: -len(_ENDING)]) for name in names if name.endswith(_ENDING))


def segment_path(folder: str, start: int) -> str:
    """The path of the file that begins at an offset."""
    return f"{folder}/{start}{_ENDING}"


class LineWriter:
    """Appends lines to a follow's files.

    Args:
        folder: The follow's folder; it is made with the first line.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fd = -1
        self._start = 0
        self._size = 0

    def append(self, lines: list[bytes]) -> dict[int, OSError]:
        """Write lines, and return the errors of those that could not be written, by index."""
        try:
            self._open()
            self._write(b"".join(lines))
        except OSError:
            # Keep as many as fit.
            return self._append_singly(lines)
        return {}

    def _append_singly(self, lines: list[bytes]) -> dict[int, OSError]:
        failed: dict[int, OSError] = {}
        for index, line in enumerate(lines):
            try:
                self._open()
                self._write(line)
            except OSError as error:
                failed[index] = error
        return failed

    def _open(self) -> None:
        if self._fd >= 0 and self._size < SEGMENT:
            return
        if self._fd < 0:
            os.makedirs(self._folder, exist_ok=True)  # noqa: PTH103 (import time)
            starts = segments(self._folder)
            start = starts[-1] if starts else 0
        else:
            start = self._start + self._size
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(segment_path(self._folder, start), flags, 0o600)
        self.close()
        self._fd, self._start, self._size = fd, start, os.fstat(fd).st_size

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            # Remove the incomplete line.
            os.ftruncate(self._fd, self._size)
            raise
        self._size += written

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_lines(folder: str, after: int, most: int) -> bytes:
    """Complete lines from an offset on, about `most` bytes; empty if there are none."""
    starts = [start for start in segments(folder) if start <= after]
    for start in starts[-1:]:
        try:
            with open(segment_path(folder, start), "rb") as file:  # noqa: PTH123 (import time)
                file.seek(after - start)
                data = file.read(most)
                while data and b"\n" not in data:
                    more = file.read(most)
                    if not more:
                        break
                    data += more
        except OSError:
            return b""
        return data[: data.rfind(b"\n") + 1]
    return b""


def end_of(folder: str) -> int:
    """The offset at which a follow's lines end."""
    starts = segments(folder)
    try:
        size = os.stat(segment_path(folder, starts[-1])).st_size  # noqa: PTH116 (import time)
    except (IndexError, OSError):
        return 0
    return starts[-1] + size


def cut_line(folder: str) -> None:
    """Remove the last line of a follow if its process was killed while it wrote that line."""
    for start in segments(folder)[-1:]:
        try:
            fd = os.open(segment_path(folder, start), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # Its disk has become read-only, so no line can follow.
            return
        try:
            if size := os.fstat(fd).st_size:
                with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as text:
                    end = text.rfind(b"\n") + 1
                os.ftruncate(fd, end)
        finally:
            os.close(fd)


def discard(folder: str, after: int, files: Iterable[int]) -> int:
    """Remove files before an offset and large values by number; return the values' size."""
    freed = 0
    for number in files:
        path = f"{folder}/blobs/{int(number)}"
        try:
            size = os.stat(path).st_size  # noqa: PTH116 (import time)
            os.unlink(path)  # noqa: PTH108 (import time)
        except OSError:
            continue
        freed += size
    starts = segments(folder)
    for start, following in zip(starts, starts[1:], strict=False):
        if following <= after:
            os.unlink(segment_path(folder, start))  # noqa: PTH108 (import time)
    return freed


def remove_folder(folder: str) -> None:
    """Remove a folder and everything in it, if it exists."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_folder(entry.path)
        else:
            os.unlink(entry.path)  # noqa: PTH108 (import time)
    os.rmdir(folder)  # noqa: PTH106 (import time)
