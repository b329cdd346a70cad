"""Where the recorder puts lines: a track for each follow, and a ring for calls that nobody follows.

The ring holds the last calls of callers that no run follows, within bounds: a run that begins takes
those of its own callers, because its program may have made them to prepare it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque

from ._follows import LineWriter, remove_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INLINE_TEXT = 64 * 1024
"""JSON text up to this size stands in the line itself."""
MAX_BACKLOG = 1 << 30
"""Bytes of one follow that wait to be taken, beyond which recording waits for its reader."""
RING_LINES = 16 << 20
"""Bytes of lines that the ring holds, in memory."""
RING_BLOBS = 64 << 20
"""Bytes of large values that the ring holds, in files."""


class Blobs:
    """The large texts and arrays of one line, in files named by numbers.

    Args:
        first: The first number to use.
        keep: Whether there will be files, or only digests.
    """

    def __init__(self, first: int, *, keep: bool) -> None:
        self.found: list[tuple[int, memoryview]] = []
        self.next = first
        self._keep = keep

    def text(self, text: bytes) -> bytes:
        """JSON text as it stands in a line: itself, or a reference to its file."""
        if len(text) <= INLINE_TEXT:
            return text if text.isascii() else _utf8(text)
        return json.dumps({"blob": self.add(memoryview(text))}).encode()

    def add(self, view: memoryview) -> dict[str, Any]:
        """Have a value kept; how a line refers to it."""
        reference = {"sha256": hashlib.sha256(view).hexdigest(), "bytes": len(view)}
        if self._keep:
            reference["file"] = self.next
            self.found.append((self.next, view))
            self.next += 1
        return reference


class Track:
    """The lines of one follow on their way to its files.

    Attributes:
        lost: How many calls could not be written since that was last told.
        why: Why not, the last time.
        taken: Bytes that its reader has taken; set by whoever hears of it.
        ended: Whether the follow has ended, so that nothing need be written any more.
        stalled: How much was taken when recording gave up to wait for the reader; -1 if it did not.
    """

    def __init__(self, folder: str) -> None:
        self.lost = 0
        self.why = ""
        self.taken = 0
        self.ended = False
        self.stalled = -1
        self._folder = folder
        self._writer = LineWriter(folder)
        self._lines: list[bytes] = []
        self._written = 0

    @property
    def is_full(self) -> bool:
        """Whether its reader should take something before more is written."""
        return self._written - self.taken > MAX_BACKLOG and not self.ended

    def add(self, line: bytes, blobs: list[tuple[int, memoryview]]) -> None:
        """Keep a line, with its large values at once.

        Raises:
            OSError: They cannot be written.
        """
        if self.ended:
            return
        for done, (number, view) in enumerate(blobs):
            try:
                self._written += store(f"{self._folder}/blobs", number, view)
            except OSError:
                for other, _ in blobs[:done]:
                    os.unlink(f"{self._folder}/blobs/{other}")  # noqa: PTH108 (import time)
                raise
        self._lines.append(line)
        self._written += len(line)

    def adopt(self, line: bytes, files: list[str]) -> None:
        """Keep a line whose large values are in files already.

        Raises:
            OSError: They cannot be moved.
        """
        for path in files:
            folder, _, name = path.rpartition("/")
            target = f"{self._folder}/blobs"
            os.makedirs(target, exist_ok=True)  # noqa: PTH103 (import time)
            os.rename(f"{folder}/{name}", f"{target}/{name}")  # noqa: PTH104 (import time)
            self._written += os.stat(f"{target}/{name}").st_size  # noqa: PTH116
        self._lines.append(line)
        self._written += len(line)

    def lose(self, calls: int, error: Exception) -> None:
        """Count calls that cannot be kept."""
        self.lost += calls
        self.why = f"{type(error).__name__}: {error}"

    def write(self) -> bool:
        """Write the lines that were added; whether there were any."""
        lines, self._lines = self._lines, []
        if not lines or self.ended:
            return False
        written, error = self._writer.append(lines)
        if error is not None:
            # Which of them are there does not matter much for what waits to be taken.
            self._written -= sum(map(len, lines))
            self.lose(len(lines) - written, error)
        return True

    def end(self) -> None:
        """Close its file."""
        self.ended = True
        self._writer.close()


class Ring:
    """The last calls that nobody follows.

    Args:
        folder: For large values; what an earlier process left there is removed.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: deque[tuple[str, bytes, list[tuple[str, int]]]] = deque()
        self._lines = 0
        self._blobs = 0
        self.dropped: dict[str, int] = {}
        """How many calls of each caller were held and are not any more."""
        remove_folder(folder)

    def add(self, caller: str, line: bytes, blobs: list[tuple[int, memoryview]]) -> None:
        """Hold a line, and let go of the oldest beyond the bounds."""
        files: list[tuple[str, int]] = []
        if sum(len(view) for _, view in blobs) > RING_BLOBS:
            self.drop(caller)
            return
        try:
            for number, view in blobs:
                store(self._folder, number, view)
                files.append((f"{self._folder}/{number}", len(view)))
                self._blobs += len(view)
        except OSError:
            self._remove(files)
            self.drop(caller)
            return
        self._held.append((caller, line, files))
        self._lines += len(line)
        while self._lines > RING_LINES or self._blobs > RING_BLOBS:
            oldest, text, its_files = self._held.popleft()
            self._lines -= len(text)
            self._remove(its_files)
            self.drop(oldest)

    def take(self, callers: set[str]) -> list[tuple[bytes, list[str]]]:
        """The lines of some callers, each with its files, which are the taker's from here on."""
        taken: list[tuple[bytes, list[str]]] = []
        kept: deque[tuple[str, bytes, list[tuple[str, int]]]] = deque()
        for item in self._held:
            caller, line, files = item
            if caller not in callers:
                kept.append(item)
                continue
            self._lines -= len(line)
            self._blobs -= sum(size for _, size in files)
            taken.append((line, [path for path, _ in files]))
        self._held = kept
        return taken

    def callers(self) -> set[str]:
        """Whose calls it holds or has dropped."""
        return {caller for caller, _, _ in self._held} | set(self.dropped)

    def drop(self, caller: str) -> None:
        """Count a call that is not held."""
        self.dropped[caller] = self.dropped.get(caller, 0) + 1

    def _remove(self, files: list[tuple[str, int]]) -> None:
        for path, size in files:
            os.unlink(path)  # noqa: PTH108 (import time)
            self._blobs -= size


def store(folder: str, number: int, view: memoryview) -> int:
    """Write a large value; how many bytes it has.

    Raises:
        OSError: It cannot be written; nothing of it is left.
    """
    path = f"{folder}/{number}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 (import time)
        fd = os.open(path, flags, 0o600)
    try:
        written = 0
        while written < len(view):
            written += os.write(fd, view[written : written + (1 << 24)])
    except OSError:
        os.unlink(path)  # noqa: PTH108 (import time)
        raise
    finally:
        os.close(fd)
    return written


def _utf8(text: bytes) -> bytes:
    """JSON text that any reader takes: lone surrogates, which the wire allows, are escaped."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return json.dumps(json.loads(text.decode("utf-8", "surrogatepass"))).encode()
    return text
