"""Append-only JSON lines, each chained to the one before by hash.

One system call writes a line. So after a crash the file holds whole lines and at most one partial
line at its end. Readers skip that line, and a writer that reopens the file removes it. A line that
was changed, removed or inserted later breaks the chain, and the reader says where.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seer.errors import RecordError

GENESIS = "0" * 64


def canonical(value: Any) -> str:
    """One text for one JSON value: sorted keys, no spaces, no NaN, ASCII only.

    ASCII, so that lone surrogates in a hostile output survive.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def link(previous: str, body: str) -> str:
    """The hash of a line with the text `body` after the line with the hash `previous`."""
    return hashlib.sha256(f"{previous}\n{body}".encode("ascii")).hexdigest()


class ChainWriter:
    """Appends values to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head = GENESIS
        self.count = 0
        good = 0
        if path.exists():
            for line in read_chain(path):
                self._head, self.count, good = line.hash, line.number + 1, line.end
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o600)
            os.ftruncate(self._fd, good)
        except OSError as error:
            raise RecordError(f"{path}: cannot be opened for writing: {error}") from error
        self._length = good

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return self._head

    def append(self, value: Any) -> None:
        """Add one line.

        Raises:
            OSError: It cannot be written, such as on a full disk; the file is as it was before.
        """
        body = canonical(value)
        digest = link(self._head, body)
        data = f'{{"hash":"{digest}","body":{body}}}\n'.encode("ascii")
        written = 0
        try:
            # A short write reports no reason; writing the rest raises it.
            while written < len(data):
                done = os.write(self._fd, data[written:])
                if not done:
                    raise OSError(errno.EIO, "nothing was written", str(self._path))
                written += done
        except OSError:
            if written:
                os.ftruncate(self._fd, self._length)
            raise
        if os.fstat(self._fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was removed", str(self._path))
        self._length += written
        self._head = digest
        self.count += 1

    def close(self) -> None:
        """Flush to the disk and close. Closing twice is harmless."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True)
class Line:
    """One line of a chained file."""

    number: int
    hash: str
    body: Any
    end: int
    """Where the next line starts, in bytes."""


def read_chain(path: Path, *, verify: bool = True, start: int = 0) -> Iterator[Line]:
    """The whole lines of a file, without a partial last line.

    Args:
        path: The file.
        verify: Whether to check the chain. It is checked only if `start` is 0.
        start: Where to begin, in bytes: the `end` of a line. Lines are counted from there.

    Raises:
        RecordError: The chain is broken: a line was changed, removed or inserted.
    """
    previous, end = GENESIS, start
    verify = verify and start == 0
    with path.open("rb") as file:
        file.seek(start)
        for number, data in enumerate(file):
            if not data.endswith(b"\n"):
                return
            end += len(data)
            try:
                parsed = json.loads(data)
                digest, body = parsed["hash"], parsed["body"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise RecordError(f"{path}: line {number + 1} is not a record: {error}") from error
            if verify and link(previous, canonical(body)) != digest:
                raise RecordError(
                    f"{path}: line {number + 1} does not follow from the lines before it: "
                    "the file was changed after it was written"
                )
            previous = digest
            yield Line(number, digest, body, end)
