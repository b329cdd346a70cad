"""Finds runs among many: an SQLite index over run folders.

The index is a cache of the folders. It is updated before every query, and rebuilt if it is missing,
damaged or of another version. If it cannot be written, or another process holds it, the folders are
read without it.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from seer.errors import ConfigError, RecordError
from seer.events import ToolCall, parse_event
from seer.runs._info import Status, read_info
from seer.runs._reader import Run
from seer.runs._record import runs_root

logger = logging.getLogger(__name__)

FILE = "index.sqlite"
BUSY = 10.0
"""Seconds to wait for another process that brings the index up to date."""
_VERSION = 2
_DAMAGE = ("no such table", "no such column", "vtable constructor failed", "Could not decode")
"""Messages about damage that have no error code of their own."""
SortKey = Literal[
    "created",
    "ended",
    "seconds",
    "cost_usd",
    "tokens",
    "turns",
    "tool_calls",
    "calls",
    "name",
    "status",
    "provider",
    "model",
    "score",
]
_ORDERS: dict[str, str] = {
    **{name: name for name in get_args(SortKey)},
    "seconds": "ended - created",
}


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One line of a listing."""

    run_id: str
    name: str
    status: Status
    provider: str | None
    model: str | None
    session: str | None
    task: str
    result: str
    created: float
    ended: float | None
    turns: int | None
    tool_calls: int | None
    calls: int | None
    tokens: int | None
    cost_usd: float | None
    score: float | None
    lineage: str
    """The run that this one repeats or continues: `replay of 4f2a9c1b`; empty for most runs."""

    def __repr__(self) -> str:
        return f"<RunSummary {self.run_id}: {self.name}, {self.status}>"

    @property
    def short_id(self) -> str:
        """The end of the id, which `open_run` also accepts."""
        return self.run_id.rpartition("-")[2]

    @property
    def seconds(self) -> float | None:
        """How long the run took; None until it has ended."""
        return None if self.ended is None else self.ended - self.created


_COLUMNS = tuple(item.name for item in fields(RunSummary))
_SCHEMA = f"""
CREATE TABLE runs ({", ".join(_COLUMNS)}, stamp, PRIMARY KEY (run_id)) WITHOUT ROWID;
CREATE INDEX runs_created ON runs (created);
CREATE INDEX runs_status ON runs (status);
CREATE VIRTUAL TABLE words USING fts5 (run_id UNINDEXED, text, tokenize = "unicode61");
PRAGMA user_version = {_VERSION};
"""


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Which runs to find; a field that is None matches every run."""

    status: Status | None = None
    provider: str | None = None
    model: str | None = None
    name: str | None = None
    """The whole name, or its beginning followed by `*`."""
    since: float | None = None
    until: float | None = None
    search: str | None = None
    """Words that must all occur in the name, task, system prompt or result."""


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """A part of a listing."""

    runs: list[RunSummary]
    total: int
    """The number of matching runs on all pages."""
    choices: dict[str, list[str]]
    """The values of `status`, `provider` and `model` that occur among all runs."""


class RunIndex:
    """The index of one folder of runs. Safe for several processes and threads at once."""

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = runs_root(root)

    def __repr__(self) -> str:
        return f"<RunIndex of {str(self.root)!r}>"

    def list(
        self,
        where: RunFilter | None = None,
        *,
        order: SortKey = "created",
        descending: bool = True,
        limit: int = 50,
        offset: int = 0,
    ) -> list[RunSummary]:
        """One page of the matching runs.

        Raises:
            ConfigError: `order` is not a column to order by.
        """
        with self._fresh() as db:
            return _select(
                db, where, order=order, descending=descending, limit=limit, offset=offset
            )

    def page(
        self,
        where: RunFilter | None = None,
        *,
        order: SortKey = "created",
        descending: bool = True,
        limit: int = 50,
        offset: int = 0,
    ) -> "RunPage":
        """One page, the number of all matching runs, and the values to filter by.

        Raises:
            ConfigError: `order` is not a column to order by.
        """
        clause, values = _where(where or RunFilter())
        with self._fresh() as db:
            db.execute("BEGIN")  # so that all three describe the same runs
            rows = _select(
                db, where, order=order, descending=descending, limit=limit, offset=offset
            )
            total = int(db.execute(f"SELECT count(*) FROM runs {clause}", values).fetchone()[0])
            choices = {
                column: [
                    str(row[0])
                    for row in db.execute(
                        f"SELECT DISTINCT {column} FROM runs WHERE {column} IS NOT NULL ORDER BY 1"
                    )
                ]
                for column in ("status", "provider", "model")
            }
        return RunPage(runs=rows, total=total, choices=choices)

    def count(self, where: RunFilter | None = None) -> int:
        """The number of matching runs."""
        clause, values = _where(where or RunFilter())
        with self._fresh() as db:
            return int(db.execute(f"SELECT count(*) FROM runs {clause}", values).fetchone()[0])

    @contextlib.contextmanager
    def _fresh(self) -> Generator[sqlite3.Connection, None, None]:
        """The index, brought up to date."""
        if not self.root.is_dir():
            with contextlib.closing(_make(":memory:")) as db:
                yield db
            return
        with contextlib.closing(self._opened()) as db:
            yield db

    def _opened(self) -> sqlite3.Connection:
        path = self.root / FILE
        try:
            return _up_to_date(path, self.root)
        except sqlite3.DatabaseError as error:
            if not _is_damaged(error):
                return self._apart(error)
            logger.warning("%s is damaged and will be rebuilt: %s", path, error)
        except OSError as error:
            return self._apart(error)
        try:
            path.unlink(missing_ok=True)
            return _up_to_date(path, self.root)
        except (sqlite3.DatabaseError, OSError) as error:
            return self._apart(error)

    def _apart(self, error: Exception) -> sqlite3.Connection:
        """An index in memory, because the file is busy or the folder cannot be written to."""
        logger.info("%s cannot be used, so all runs are read: %s", self.root / FILE, error)
        db = _make(":memory:")
        try:
            _update(db, self.root)
        except BaseException:
            db.close()
            raise
        return db


def _select(
    db: sqlite3.Connection,
    where: RunFilter | None,
    *,
    order: str,
    descending: bool,
    limit: int,
    offset: int,
) -> list[RunSummary]:
    if order not in _ORDERS:
        raise ConfigError("order", order, f"must be one of {', '.join(sorted(_ORDERS))}")
    clause, values = _where(where or RunFilter())
    direction = "DESC" if descending else "ASC"
    # Runs without a value come last, in both directions.
    query = (
        f"SELECT {', '.join(_COLUMNS)} FROM runs {clause} ORDER BY {_ORDERS[order]} IS NULL, "
        f"{_ORDERS[order]} {direction}, run_id {direction} LIMIT ? OFFSET ?"
    )
    rows = db.execute(query, (*values, limit, offset)).fetchall()
    return [RunSummary(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]


def _is_damaged(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is damaged or not an index, rather than busy, read-only or out of space."""
    # The lower byte is the kind of error; the others are details.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_ERROR:
        return str(error).startswith(_DAMAGE)
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _up_to_date(path: Path, root: Path) -> sqlite3.Connection:
    db = _open(path)
    try:
        _update(db, root)
    except BaseException:
        db.close()
        raise
    return db


def _open(path: Path) -> sqlite3.Connection:
    # The index holds text of records, so only their owner may read it; SQLite's own files get the
    # same mode. An existing file is not opened here: closing it would drop the locks of other
    # threads.
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    db = sqlite3.connect(path, timeout=BUSY, isolation_level=None)
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == _VERSION:
            return db
        db.execute("BEGIN EXCLUSIVE")
        if db.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            for name in ("runs", "words"):
                db.execute(f"DROP TABLE IF EXISTS {name}")
            for statement in _SCHEMA.strip().split(";\n"):
                db.execute(statement)
        db.execute("COMMIT")
        return db
    except BaseException:
        db.close()
        raise


def _make(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(_SCHEMA)
    return db


def _update(db: sqlite3.Connection, root: Path) -> None:
    known = dict(db.execute("SELECT run_id, stamp FROM runs").fetchall())
    present = dict(_stamps(root))
    changed = [run_id for run_id, stamp in present.items() if known.get(run_id) != stamp]
    gone = [run_id for run_id in known if run_id not in present]
    # The process of a run that is indexed as running may have ended.
    running = {row[0] for row in db.execute("SELECT run_id FROM runs WHERE status = 'running'")}
    changed += [run_id for run_id in running if known.get(run_id) == present.get(run_id)]
    if not changed and not gone:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for run_id in (*gone, *changed):
            if run_id in known:
                db.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
                db.execute("DELETE FROM words WHERE run_id = ?", (run_id,))
        for run_id in changed:
            if run_id in present:
                _insert(db, root, run_id, stamp=present[run_id])
        db.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back already if, for example, the disk is full.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _stamps(root: Path) -> Iterator[tuple[str, str]]:
    """Each run with a stamp that changes when its `run.json` changes."""
    closed = 0
    with os.scandir(root) as entries:
        for entry in entries:
            try:
                stat = os.stat(f"{entry.path}/run.json")  # noqa: PTH116 (thousands of them)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError:
                closed += 1
                continue
            yield entry.name, f"{stat.st_mtime_ns}-{stat.st_size}-{stat.st_ino}"
    if closed:
        folders = "1 folder" if closed == 1 else f"{closed} folders"
        logger.warning("left out %s in %s that only another user may open", folders, root)


def _insert(db: sqlite3.Connection, root: Path, run_id: str, *, stamp: str) -> None:
    try:
        info = read_info(root / run_id)
    except RecordError as error:
        logger.warning("left out of the index: %s", error)
        return
    values: dict[str, Any] = {
        **{column: getattr(info, column) for column in _COLUMNS},
        "run_id": run_id,
        "status": info.status_now,
        "result": info.result or "",
    }
    if values["turns"] is None:
        # Totals are written at the end, so a run that is running or crashed has none.
        values |= _counts(root / run_id)
    marks = ", ".join("?" * (len(_COLUMNS) + 1))
    db.execute(
        f"INSERT OR REPLACE INTO runs VALUES ({marks})",
        (*(_plain(values[column]) for column in _COLUMNS), stamp),
    )
    words = (run_id, *(values[key] for key in ("name", "task", "result", "model", "provider")))
    text = "\n".join(str(word) for word in (*words, info.system_prompt) if word)
    db.execute("INSERT INTO words VALUES (?, ?)", (run_id, _storable(text)))


def _counts(folder: Path) -> dict[str, int]:
    """The counts of a record without totals."""
    turns = tools = calls = 0
    run = Run(folder)
    try:
        for _, line in run.lines("events"):
            event = parse_event(line)
            turns = max(turns, event.turn)
            tools += isinstance(event, ToolCall)
        calls = sum(1 for _ in run.lines("calls"))
    except RecordError as error:
        logger.info("%s: %s", folder, error)
    return {"turns": turns, "tool_calls": tools, "calls": calls}


def _plain(value: Any) -> str | float | int | None:
    return value if isinstance(value, (int, float)) or value is None else _storable(str(value))


def _storable(text: str) -> str:
    """The text without lone surrogates, which an agent can send and SQLite rejects."""
    return text.encode("utf-8", "replace").decode()


def _where(where: RunFilter) -> tuple[str, Sequence[Any]]:
    parts: list[str] = []
    values: list[Any] = []
    for column in ("status", "provider", "model"):
        if (value := getattr(where, column)) is not None:
            parts.append(f"{column} = ?")
            values.append(value)
    if where.name is not None:
        beginning = where.name.endswith("*")
        parts.append("substr(name, 1, ?) = ?" if beginning else "name = ?")
        name = where.name.removesuffix("*")
        values += [len(name), name] if beginning else [name]
    if where.since is not None:
        parts.append("created >= ?")
        values.append(where.since)
    if where.until is not None:
        parts.append("created < ?")
        values.append(where.until)
    if where.search is not None and where.search.strip():
        parts.append("run_id IN (SELECT run_id FROM words WHERE text MATCH ?)")
        # Quoted, so that no part of a search is syntax; the last word may be a prefix.
        terms = [f'"{word.replace(chr(34), chr(34) * 2)}"' for word in where.search.split()]
        values.append(" ".join(terms) + "*")
    plain = [_storable(value) if isinstance(value, str) else value for value in values]
    return ("WHERE " + " AND ".join(parts) if parts else ""), plain
