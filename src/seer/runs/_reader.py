"""Reads the record of a run that has ended, is running, or whose process was killed."""

import importlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Literal, cast

from seer.errors import MissingExtraError, RecordError, RunNotFoundError
from seer.events import Event, parse_event
from seer.runs._blobs import BlobStore, unpack
from seer.runs._calls import GateCall
from seer.runs._chain import GENESIS, read_chain
from seer.runs._info import RunInfo, Status, finite, read_info, read_json
from seer.runs._record import runs_root, write_json
from seer.runs._tool_calls import ToolCallTimes


class Run:
    """A recorded run, opened for reading. Nothing is cached: a running run grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_id = folder.name
        self._blobs = BlobStore(folder / "blobs")
        self._times: tuple[int, ToolCallTimes] | None = None
        """The length of the events file when it was last read, and the times of its tool calls."""

    def __repr__(self) -> str:
        return f"<Run {self.run_id}: {self.info.describe()}>"

    def _repr_html_(self) -> str:
        return f"<b>run {escape(self.run_id)}</b>: {escape(self.info.describe())}"

    @property
    def info(self) -> RunInfo:
        """What `run.json` says.

        Raises:
            RecordError: It is missing, or it is not a run record of this version of Seer.
        """
        return read_info(self.folder)

    @property
    def meta(self) -> dict[str, Any]:
        """What `run.json` says, in its JSON form.

        Raises:
            RecordError: It is missing, or it is not a run record of this version of Seer.
        """
        return read_json(self.folder)

    @property
    def status(self) -> Status:
        """How the run ended, `running`, or `crashed` if its process is gone."""
        return self.info.status_now

    def events(self) -> Iterator[dict[str, Any]]:
        """The events in their JSON form, up to the last complete one.

        Raises:
            RecordError: The record was changed after it was written.
        """
        yield from self._lines("events.jsonl")

    def typed_events(self) -> Iterator[Event]:
        """The events, up to the last complete one.

        An event that this version of Seer does not know is an `UnknownEvent`.

        Raises:
            RecordError: The record was changed after it was written.
        """
        return map(parse_event, self.events())

    def calls(self) -> Iterator[dict[str, Any]]:
        """The calls of the gate in their JSON form, up to the last complete one.

        Raises:
            RecordError: The record was changed after it was written.
        """
        yield from map(self._with_tool_call, self._lines("calls.jsonl"))

    def typed_calls(self) -> Iterator[GateCall]:
        """The calls of the gate, up to the last complete one.

        Raises:
            RecordError: The record was changed after it was written.
        """
        return map(GateCall.from_json, self.calls())

    def calls_df(self) -> Any:
        """The calls of the gate as a pandas DataFrame, one row each.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        like = GateCall(interface="", caller="", function="", arguments=None)
        return _frame(self.calls(), like=like.to_json())

    def events_df(self) -> Any:
        """The events as a pandas DataFrame, one row each.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return _frame(self.events(), like=Event().to_json())

    def lines(
        self, name: Literal["events", "calls"], *, after: int = 0
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The events or calls as they are on disk, each with the offset where the next begins.

        For readers that follow a run or page through it. Large texts and binary values are
        references, `{"$blob": digest, "bytes": n}`. Any other key that begins with `$` is written
        with one `$` more. The chain is not checked.

        Raises:
            RecordError: A line cannot be read.
        """
        path = self.folder / f"{name}.jsonl"
        if path.exists():
            for line in read_chain(path, verify=False, start=after):
                body = cast("dict[str, Any]", line.body)
                yield line.end, self._with_tool_call(body) if name == "calls" else body

    def blob(self, digest: str) -> bytes:
        """The content of a blob."""
        return self._blobs.get(digest)

    def artifacts(self) -> list[Path]:
        """The kept files, as paths below `artifacts/`."""
        root = self.folder / "artifacts"
        return sorted(p.relative_to(root) for p in root.rglob("*") if p.is_file())

    def siblings(self) -> list["Run"]:
        """All runs that the same program recorded, this one included, oldest first.

        A program (auditor, target and judge, or ten agents at once) is replayed as a whole. Its
        runs name the same writer, which is the process that recorded them.
        """
        writer = self.info.writer
        if writer.start is None:
            return [self]
        # This search avoids parsing most files of the folder.
        mark = json.dumps(writer.start).encode()
        found: dict[str, Run] = {self.run_id: self}
        for path in self.folder.parent.glob("*/run.json"):
            try:
                if mark in path.read_bytes():
                    other = Run(path.parent)
                    if other.info.writer == writer:
                        found[other.run_id] = other
            except (OSError, RecordError):
                continue  # deleted meanwhile, or damaged
        return sorted(found.values(), key=lambda run: (run.info.created, run.run_id))

    def set_score(self, score: float) -> None:
        """Set the run's score, for listings, the viewer, sweeps and exports.

        Raises:
            ConfigError: It is not a finite number.
            RecordError: The run has not ended, or its record cannot be written.
        """
        score = finite("score", score)
        if self.status == "running":
            raise RecordError(f"{self.run_id} has not ended; set its score afterwards")
        write_json(self.folder, replace(self.info, score=score).to_json())

    def verify(self) -> None:
        """Check the record: both chains, how many lines they have, and the blobs in their lines.

        The arrays of gate calls are not checked.

        Raises:
            RecordError: Something was changed, or a closed record is cut short.
        """
        info = self.info
        for name, expected, head in (
            ("events.jsonl", info.events, info.events_head),
            ("calls.jsonl", info.calls, info.calls_head),
        ):
            path, count, last = self.folder / name, 0, GENESIS
            for line in read_chain(path) if path.exists() else ():
                unpack(line.body, self._blobs)
                count, last = count + 1, line.hash
            if expected is not None and count != expected:
                raise RecordError(f"{path} holds {count} lines, {expected} were written")
            if head is not None and last != head:
                raise RecordError(f"{path}: its last line is not the one that was written")

    def _with_tool_call(self, call: dict[str, Any]) -> dict[str, Any]:
        """A call with the id of its tool call, which records of older versions do not have."""
        if "tool_call" in call or "interface" not in call:
            return call
        path = self.folder / "events.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if self._times is None or self._times[0] != size:
            try:
                times = ToolCallTimes(body for _, body in self.lines("events"))
            except RecordError:
                times = ToolCallTimes(())  # reading the events raises it
            self._times = size, times
        time, run, queue = (float(call.get(key) or 0.0) for key in ("time", "run", "queue"))
        found = self._times[1].around(str(call.get("function")), time - run - queue)
        return {**call, "tool_call": found}

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self.folder / name
        if path.exists():
            for line in read_chain(path):
                yield cast("dict[str, Any]", unpack(line.body, self._blobs))


def open_run(name: str | Path, root: Path | str | None = None) -> Run:
    """Open a run by its folder, its id, or the beginning or end of its id.

    The last part of an id is its short id; the beginning of the short id is enough too.

    Raises:
        RunNotFoundError: No run matches, or several do.
    """
    folder = Path(name)
    if (folder / "run.json").is_file():
        return Run(folder.absolute())
    where = runs_root(root)
    text = str(name)
    ids = [path.parent.name for path in where.glob("*/run.json")]
    exact = [item for item in ids if item == text]
    fitting = exact or sorted(item for item in ids if text and _fits(text, item))
    if len(fitting) == 1:
        return Run(where / fitting[0])
    if fitting:
        raise RunNotFoundError(f"{text!r} matches several runs: {', '.join(fitting[:10])}")
    raise RunNotFoundError(f"no run {text!r} in {where}; `seer runs list` lists them")


def _fits(text: str, run_id: str) -> bool:
    short = run_id.rpartition("-")[2]
    return run_id.startswith(text) or run_id.endswith(text) or short.startswith(text)


def _frame(rows: Iterator[dict[str, Any]], *, like: Iterable[str]) -> Any:
    """The rows as a table; a table without rows has the columns of `like`."""
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise MissingExtraError("data frames need pandas; run: pip install pandas") from error
    found = list(rows)
    return pandas.DataFrame(found, columns=None if found else list(like))


def delete_run(run: Run) -> None:
    """Remove a run's folder and all in it.

    Raises:
        RecordError: The run is running, or its folder cannot be removed.
    """
    if run.status == "running":
        raise RecordError(f"{run.run_id} is running; stop it first")
    try:
        # `run.json` first: if the removal fails half-way, the folder is no longer a run.
        (run.folder / "run.json").unlink()
        shutil.rmtree(run.folder.resolve())
        if run.folder.is_symlink():  # a sweep links the runs of its cells
            run.folder.unlink()
    except OSError as error:
        raise RecordError(f"{run.folder} cannot be removed: {error.strerror}") from error
