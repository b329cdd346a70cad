"""The journal of a sweep: one JSON line per event, written before the sweep acts on the event.

Readers ignore a line that a crash cut off. An attempt that began and never ended was lost with the
sweep. The end of an attempt is written to the attempt's own folder first and to the journal second,
so no result is lost when the journal cannot be written.
"""

import contextlib
import errno
import json
import os
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from seer._files import replace_file
from seer.errors import RecordError, SeerError

AttemptOutcome = Literal["done", "failed", "crashed", "timeout", "lost"]
FILE = "journal.jsonl"
_RESERVE = "reserve"
_RESERVED = 64 << 10
"""Size of a file that is deleted when the disk is full, to make space for the last lines."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at one cell."""

    cell_id: str
    number: int
    """From 1."""
    outcome: AttemptOutcome
    began: float
    ended: float
    where: str = ""
    """Host (and Ray node) and process id; the id is `-` if the program had not started."""
    score: float | None = None
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    run_ids: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    """The agents that ran, according to the records; empty if the program recorded no run."""
    cost_usd: float | None = None
    error: str = ""
    """What went wrong, and the end of the program's output; empty if the attempt succeeded."""

    @property
    def seconds(self) -> float:
        """How long the attempt took."""
        return self.ended - self.began


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """An attempt that has no end in the journal."""

    cell_id: str
    number: int
    began: float
    where: str = ""


class Journal:
    """The journal of one sweep. One process at a time writes it.

    Raises:
        RecordError: The disk is full, or the file cannot be written. Every method can raise this.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._folder = folder
        with writing(self.path):
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            size = self.path.stat().st_size
            if size and not _ends_whole(self.path):
                os.write(self._file, b"\n")
            (folder / _RESERVE).write_bytes(bytes(_RESERVED))

    def begin(self, cell_id: str, number: int, at: float) -> None:
        """Note that an attempt is about to start."""
        self._write({"begin": cell_id, "number": number, "at": at})

    def placed(self, cell_id: str, number: int, where: str) -> None:
        """Note where an attempt runs."""
        self._write({"placed": cell_id, "number": number, "where": where})

    def end(self, attempt: Attempt) -> None:
        """Note that an attempt has ended."""
        data = asdict(attempt)
        home = attempt_folder(self._folder, attempt.cell_id, attempt.number)
        try:
            _keep(home, data)
        except OSError:
            self.release()
            with writing(home):
                _keep(home, data)
        self._write({"end": data})

    def release(self) -> None:
        """Delete the reserve file, to make space for the last lines."""
        (self._folder / _RESERVE).unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line).encode() + b"\n"
        with writing(self.path):
            before = os.fstat(self._file).st_size
            try:
                if os.write(self._file, data) < len(data):
                    raise OSError("no space left for a whole line")
                os.fsync(self._file)
            except OSError:
                # A partial line would corrupt the line after it.
                os.ftruncate(self._file, before)
                raise

    def close(self) -> None:
        """Close the file."""
        self.release()
        os.close(self._file)


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Raise a `RecordError` for a file of a sweep that cannot be written; the message is one line.

    Args:
        path: The file that is written, if the error does not name one.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, SeerError):
            raise
        raise RecordError(_failure(error, Path(error.filename or path))) from error


def _failure(error: OSError, path: Path) -> str:
    if error.errno == errno.ENOENT:
        while not path.parent.exists():
            path = path.parent
        return (
            f"{str(path)!r} was removed or renamed while the sweep ran; put it back and run the "
            "same command again to continue, or choose another folder"
        )
    remedy = "make it writable" if error.errno == errno.EROFS else "free some space"
    return (
        f"{str(path)!r} cannot be written: {error.strerror or error}. Results of finished cells "
        f"are kept; {remedy} and run the same command again to continue"
    )


def attempt_folder(folder: Path, cell_id: str, number: int) -> Path:
    """The folder of one attempt, with all its results."""
    return folder / "cells" / cell_id / f"attempt-{number}"


def _keep(home: Path, data: Mapping[str, Any]) -> None:
    home.mkdir(parents=True, exist_ok=True)
    replace_file(home / "attempt.json", json.dumps(data), durable=True)


def kept_attempt(folder: Path, unfinished: Unfinished) -> Attempt | None:
    """How an attempt ended, read from its own folder; None if the folder does not have that."""
    home = attempt_folder(folder, unfinished.cell_id, unfinished.number)
    try:
        return _attempt(json.loads((home / "attempt.json").read_text()))
    except (OSError, ValueError):
        return None


def _attempt(data: dict[str, Any]) -> Attempt:
    lists = {name: tuple(data.pop(name, ())) for name in ("run_ids", "agents")}
    return Attempt(**lists, **data)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_journal(folder: Path) -> tuple[list[Attempt], list[Unfinished]]:
    """The attempts that ended, and those that began and did not end."""
    ended: list[Attempt] = []
    open_: dict[str, Unfinished] = {}
    path = folder / FILE
    if not path.exists():
        return [], []
    for raw in path.read_bytes().split(b"\n"):
        try:
            line = cast("dict[str, Any]", json.loads(raw))
        except ValueError:  # the last line of a sweep that was killed
            continue
        if "begin" in line:
            cell_id: str = line["begin"]
            open_[cell_id] = Unfinished(cell_id=cell_id, number=line["number"], began=line["at"])
        elif "placed" in line:
            known = open_.get(line["placed"])
            if known is not None:
                open_[known.cell_id] = replace(known, where=line["where"])
        else:
            found = _attempt(line["end"])
            open_.pop(found.cell_id, None)
            ended.append(found)
    return ended, list(open_.values())
