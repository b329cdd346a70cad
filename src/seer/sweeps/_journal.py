"""What a sweep has done so far: a file of lines, each written before the next thing happens.

A line that was cut off by a crash is ignored; a cell whose attempt began and never ended is one
that was lost with the sweep.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

Outcome = Literal["done", "failed", "crashed", "timeout", "lost"]
FILE = "journal.jsonl"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at one cell."""

    cell_id: str
    number: int
    """From 1."""
    outcome: Outcome
    began: float
    ended: float
    where: str = ""
    """The host, and the process there."""
    score: float | None = None
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    run_ids: tuple[str, ...] = ()
    cost_usd: float | None = None
    error: str = ""
    """The last words of an attempt that did not succeed."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class Journal:
    """The journal of one sweep. One process at a time writes it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._file = self.path.open("ab")
        if self.path.stat().st_size and not _ends_whole(self.path):
            self._file.write(b"\n")

    def begin(self, cell_id: str, number: int, at: float) -> None:
        """An attempt is about to start."""
        self._write({"begin": cell_id, "number": number, "at": at})

    def end(self, attempt: Attempt) -> None:
        """An attempt has ended."""
        self._write({"end": asdict(attempt)})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_journal(folder: Path) -> tuple[list[Attempt], dict[str, tuple[int, float]]]:
    """What has happened: attempts that ended, and those that began and did not (number, when)."""
    ended: list[Attempt] = []
    open_: dict[str, tuple[int, float]] = {}
    path = folder / FILE
    if not path.exists():
        return [], {}
    for raw in path.read_bytes().split(b"\n"):
        try:
            line = cast("dict[str, Any]", json.loads(raw))
        except ValueError:  # the last line of a sweep that was killed
            continue
        if "begin" in line:
            open_[line["begin"]] = (line["number"], line["at"])
        else:
            data: dict[str, Any] = line["end"]
            open_.pop(data["cell_id"], None)
            ended.append(Attempt(run_ids=tuple(data.pop("run_ids")), **data))
    return ended, open_
