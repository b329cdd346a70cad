"""A run as a stream of JSON lines that ends when the run ends.

The first line holds the run's metadata. Events and calls follow from the offsets that the client
gives, then new ones while the run continues. A client that lost the connection asks again with its
last offsets. The server polls the files a few times a second, because another process writes the
record and a poll costs only three `stat` calls.
"""

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread

from seer.errors import RecordError
from seer.runs import Run
from seer.viewer._json import dump
from seer.viewer._lines import WHOLE, LineKind, described, slim

LOOK = 0.25
"""Seconds between two polls of a running run."""
BEAT = 10.0
"""Seconds after which an empty line keeps the connection alive."""
_BATCH = 512 * 1024
"""About how many characters of each file one poll reads."""


@dataclass
class RunTail:
    """The position of one reader in one run."""

    run: Run
    offsets: dict[LineKind, int]
    broken: set[str] = field(default_factory=set[str])
    _stamp: tuple[int, ...] = ()
    _status: str = ""

    def look(self) -> list[dict[str, Any]]:
        """The new lines since the last poll, up to a bounded amount."""
        found: list[dict[str, Any]] = []
        meta = self._news_of_run()
        if meta is not None:
            found.append(meta)
        for kind in self.offsets:
            if kind not in self.broken:
                found += self._news_of(kind)
        return found

    @property
    def over(self) -> bool:
        """Whether the run had ended at the last poll."""
        return self._status not in {"", "running"}

    def _news_of(self, kind: LineKind) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        at, budget = self.offsets[kind], _BATCH
        try:
            for end, body in self.run.lines(kind, after=at):
                line = slim(body, end - at)
                found.append({"kind": kind, "at": at, "next": end, "body": line})
                budget -= min(end - at, WHOLE)
                self.offsets[kind] = at = end
                if budget <= 0:
                    break
        except RecordError as error:
            self.broken.add(kind)
            found.append({"kind": "broken", "file": kind, "message": str(error)})
        return found

    def _news_of_run(self) -> dict[str, Any] | None:
        stat = (self.run.folder / "run.json").stat()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp == self._stamp and self.over:
            return None
        status = self.run.status
        if stamp == self._stamp and status == self._status:
            return None
        self._stamp, self._status = stamp, status
        return {"kind": "run", "body": described(self.run)}


async def follow(
    run: Run, offsets: dict[LineKind, int], *, closing: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """The stream, as lines of JSON."""
    tail = RunTail(run, offsets)
    spoken = time.monotonic()
    while not closing():
        # Read before the poll, so that no line from before the run's end is missed.
        over = tail.over
        try:
            found = await anyio.to_thread.run_sync(tail.look)
        except (OSError, RecordError) as error:
            yield _line({"kind": "gone", "message": f"the run can no longer be read: {error}"})
            return
        if found:
            yield b"".join(map(_line, found))
            spoken = time.monotonic()
        elif over:
            yield _line({"kind": "end"})
            return
        else:
            if time.monotonic() - spoken > BEAT:
                yield b"\n"
                spoken = time.monotonic()
            await anyio.sleep(LOOK)


def _line(value: dict[str, Any]) -> bytes:
    return dump(value).encode("ascii") + b"\n"
