"""Reading a record: of a run that ended, that is running, or whose writer was killed."""

import importlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Literal, cast

from seer.errors import ConfigError, MissingExtraError, RecordError, RunNotFoundError
from seer.events import Event, parse_event
from seer.runs._blobs import BlobStore, unpack
from seer.runs._calls import GateCall
from seer.runs._chain import read_chain
from seer.runs._places import runs_root
from seer.runs._record import FORMAT, Status, boot_id, process_start, write_meta


class Run:
    """A recorded run, opened for reading. Nothing is cached: a running run grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_id = folder.name
        self._blobs = BlobStore(folder / "blobs")

    def __repr__(self) -> str:
        return f"<Run {self.run_id}: {about_run(self.meta)}>"

    def _repr_html_(self) -> str:
        return f"<b>run {escape(self.run_id)}</b>: {escape(about_run(self.meta))}"

    @property
    def meta(self) -> dict[str, Any]:
        """What `run.json` says.

        Raises:
            RecordError: It is missing or no run record of this version of Seer.
        """
        return read_meta(self.folder)

    @property
    def status(self) -> Status:
        """How the run ended, or that it is running, or that its writer is gone."""
        return status_of(self.meta)

    def events(self, *, verify: bool = True) -> Iterator[dict[str, Any]]:
        """The events in their JSON form, up to the last complete one.

        Raises:
            RecordError: The record was changed after it was written.
        """
        yield from self._lines("events.jsonl", verify=verify)

    def typed_events(self, *, verify: bool = True) -> Iterator[Event]:
        """The events, up to the last complete one.

        An event that this version of Seer does not know comes as an `UnknownEvent`.

        Raises:
            RecordError: The record was changed after it was written.
        """
        return map(parse_event, self.events(verify=verify))

    def calls(self, *, verify: bool = True) -> Iterator[dict[str, Any]]:
        """The calls of the gate in their JSON form, up to the last complete one.

        Raises:
            RecordError: The record was changed after it was written.
        """
        yield from self._lines("calls.jsonl", verify=verify)

    def typed_calls(self, *, verify: bool = True) -> Iterator[GateCall]:
        """The calls of the gate, up to the last complete one.

        Raises:
            RecordError: The record was changed after it was written.
        """
        return map(GateCall.from_json, self.calls(verify=verify))

    def calls_df(self) -> Any:
        """The calls of the gate as a pandas DataFrame, one row each.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return _frame(self.calls())

    def events_df(self) -> Any:
        """The events as a pandas DataFrame, one row each.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return _frame(self.events())

    def lines(
        self, name: Literal["events", "calls"], *, after: int = 0
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The events or calls as they are on disk, each with the offset where the next begins.

        For readers that follow a run or page through it. Large texts and binary values are
        references, `{"$blob": digest, "bytes": n}`, and other keys that begin with `$` have one
        `$` more than the value has. The chain is not checked.

        Raises:
            RecordError: A line cannot be read.
        """
        path = self.folder / f"{name}.jsonl"
        if path.exists():
            for line in read_chain(path, verify=False, start=after):
                yield line.end, cast("dict[str, Any]", line.body)

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
        writer: dict[str, Any] = self.meta.get("writer") or {}
        if writer.get("start") is None:
            return [self]
        # Most files of the folder need not even be parsed.
        mark = json.dumps(writer["start"]).encode()
        found: dict[str, Run] = {self.run_id: self}
        for path in self.folder.parent.glob("*/run.json"):
            try:
                if mark in path.read_bytes():
                    other = Run(path.parent)
                    if other.meta.get("writer") == writer:
                        found[other.run_id] = other
            except (OSError, RecordError):
                continue  # deleted meanwhile, or damaged
        return sorted(found.values(), key=lambda run: (run.meta.get("created") or 0.0, run.run_id))

    def set_score(self, score: float) -> None:
        """Record what the run is worth, for listings, the viewer, sweeps and exports.

        Raises:
            ConfigError: It is not a finite number.
            RecordError: The run has not ended, or its record cannot be written.
        """
        if not math.isfinite(score):
            raise ConfigError("score", score, "must be a finite number")
        if self.status == "running":
            raise RecordError(f"{self.run_id} has not ended; set its score afterwards")
        write_meta(self.folder, {**self.meta, "score": float(score)})

    def verify(self) -> None:
        """Check the whole record: both chains, their ends, and every blob they name.

        Raises:
            RecordError: Something was changed, or a closed record is cut short.
        """
        meta = self.meta
        for name, lines in (("events", self.events()), ("calls", self.calls())):
            count = sum(1 for _ in lines)
            expected = meta.get(name)
            if expected is not None and count != expected:
                raise RecordError(
                    f"{self.folder / name}.jsonl holds {count} lines, {expected} were written"
                )

    def _lines(self, name: str, *, verify: bool) -> Iterator[dict[str, Any]]:
        path = self.folder / name
        if path.exists():
            for line in read_chain(path, verify=verify):
                yield cast("dict[str, Any]", unpack(line.body, self._blobs))


def open_run(name: str | Path, root: Path | str | None = None) -> Run:
    """Open a run by its folder, its id, or the beginning or end of its id.

    Raises:
        RunNotFoundError: None fits, or several do.
    """
    folder = Path(name)
    if (folder / "run.json").is_file():
        return Run(folder.absolute())
    where = runs_root(root)
    text = str(name)
    ids = [path.parent.name for path in where.glob("*/run.json")]
    exact = [item for item in ids if item == text]
    fitting = exact or sorted(i for i in ids if text and (i.startswith(text) or i.endswith(text)))
    if len(fitting) == 1:
        return Run(where / fitting[0])
    if fitting:
        raise RunNotFoundError(f"{text!r} fits several runs: {', '.join(fitting[:10])}")
    raise RunNotFoundError(f"no run {text!r} in {where}; `seer runs` lists them")


def about_run(meta: Mapping[str, Any]) -> str:
    """A run in a few words: status, agent, counts."""
    who = meta.get("agent") or meta.get("provider") or "no agent"
    parts = [status_of(meta), str(who), *([str(meta["model"])] if meta.get("model") else [])]
    if meta.get("turns") is not None:
        parts.append(f"{meta['turns']} turns, {meta.get('calls') or 0} calls")
    if meta.get("score") is not None:
        parts.append(f"score {meta['score']:g}")
    return ", ".join(parts)


def _frame(rows: Iterator[dict[str, Any]]) -> Any:
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise MissingExtraError("data frames need pandas; run: pip install pandas") from error
    return pandas.DataFrame(list(rows))


def delete_run(run: Run) -> None:
    """Remove a run's folder and all in it.

    Raises:
        RecordError: The run is running, or its folder cannot be removed.
    """
    if run.status == "running":
        raise RecordError(f"{run.run_id} is running; stop it first")
    try:
        # The record first: a removal that breaks off leaves a folder that is no longer a run.
        (run.folder / "run.json").unlink()
        shutil.rmtree(run.folder.resolve())
        if run.folder.is_symlink():  # as a sweep shows the runs of its cells
            run.folder.unlink()
    except OSError as error:
        raise RecordError(f"{run.folder} cannot be removed: {error.strerror}") from error


def read_meta(folder: Path) -> dict[str, Any]:
    """What `run.json` in `folder` says; see `Run.meta`."""
    path = folder / "run.json"
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    if not isinstance(data, dict) or cast("dict[str, Any]", data).get("format") != FORMAT:
        raise RecordError(f"{path}: is not a run record of format {FORMAT}")
    return cast("dict[str, Any]", data)


def status_of(meta: Mapping[str, Any]) -> Status:
    """The status that `run.json` gives, checked against the life of its writer."""
    status = cast("Status", meta["status"])
    writer = cast("Mapping[str, Any]", meta.get("writer") or {})
    if status != "running" or writer.get("start") is None:
        return status
    if writer.get("boot") == boot_id() and process_start(int(writer["pid"])) == writer["start"]:
        return "running"
    return "crashed"
