"""The results of a sweep, read from its folder: one row per cell, also while the sweep runs."""

import csv
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from seer.errors import ConfigError, MissingExtraError
from seer.sweeps._cell import Cell
from seer.sweeps._journal import Attempt, read_journal
from seer.sweeps._matrix import Matrix

FILE = "sweep.json"
_TRACEBACK = "Traceback (most recent call last):"
StoppedBy = Literal["", "budget"]
_COLUMNS = [
    *("cell", "agent", "tools", "model", "seed", "repetition", "outcome", "score"),
    *("attempts", "seconds", "cost_usd", "ran", "run_ids", "error"),
]


@dataclass(frozen=True)
class SweepResult:
    """The results of a sweep so far."""

    folder: Path
    program: str
    matrix: Matrix
    attempts: tuple[Attempt, ...]
    """All attempts, in the order in which they ended."""
    stopped: StoppedBy = ""
    """Why this call of `run` stopped before all cells were done; empty if it did not."""
    running: tuple[str, ...] = ()
    """Ids of the cells whose attempt began and has not ended."""

    @property
    def cells(self) -> list[Cell]:
        """All cells, run or not."""
        return self.matrix.cells()

    def last(self) -> dict[str, Attempt]:
        """The last attempt of each cell, by cell id. It is the one that counts."""
        return {attempt.cell_id: attempt for attempt in self.attempts}

    @property
    def done(self) -> int:
        """The number of cells that have a result."""
        return sum(attempt.outcome == "done" for attempt in self.last().values())

    @property
    def cost_usd(self) -> float:
        """The cost of all attempts, including failed ones."""
        return sum(attempt.cost_usd or 0.0 for attempt in self.attempts)

    def run_folders(self, cell_id: str) -> list[Path]:
        """The recorded runs of a cell, also of an attempt that is running; the latest is last."""
        found = (self.folder / "cells" / cell_id).glob("attempt-*/runs/*/run.json")
        return sorted((path.parent for path in found), key=lambda folder: folder.name)

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell. Each value that the experiment reported has its own column."""
        last = self.last()
        tries: dict[str, int] = {}
        for attempt in self.attempts:
            tries[attempt.cell_id] = tries.get(attempt.cell_id, 0) + 1
        found: list[dict[str, Any]] = []
        for cell in self.cells:
            attempt = last.get(cell.id)
            row: dict[str, Any] = {
                "cell": cell.id,
                **{name: getattr(cell, name) for name in ("agent", "tools", "model")},
                "seed": cell.seed,
                "repetition": cell.repetition,
                "outcome": attempt.outcome if attempt else "not run",
                # A score that was reported before the program failed does not count.
                "score": attempt.score if attempt and attempt.outcome == "done" else None,
                "attempts": tries.get(cell.id, 0),
                "seconds": round(attempt.seconds, 3) if attempt else None,
                "cost_usd": attempt.cost_usd if attempt else None,
                "ran": " ".join(attempt.agents) if attempt else "",
                "run_ids": " ".join(attempt.run_ids) if attempt else "",
                "error": _last_words(attempt) if attempt else "",
            }
            if attempt:
                row.update({f"value.{name}": value for name, value in attempt.values.items()})
            found.append(row)
        return found

    def columns(self) -> list[str]:
        """The columns of the table: the common ones, then those that the experiment reported."""
        reported = {name for row in self.rows() for name in row if name.startswith("value.")}
        return [*_COLUMNS, *sorted(reported)]

    def to_csv(self, path: str | Path) -> Path:
        """Write the table as CSV."""
        target = Path(path)
        with target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns())
            writer.writeheader()
            writer.writerows(self.rows())
        return target

    def to_parquet(self, path: str | Path) -> Path:
        """Write the table as Parquet. A column whose values have several types holds JSON.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        try:
            arrow: Any = importlib.import_module("pyarrow")
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise MissingExtraError(
                "Parquet needs pyarrow; run: pip install 'seer-interp[sweeps]'"
            ) from error
        rows = self.rows()
        columns = {name: [row.get(name) for row in rows] for name in self.columns()}
        table = arrow.table({name: _column(arrow, values) for name, values in columns.items()})
        parquet.write_table(table, str(path))
        return Path(path)


def _last_words(attempt: Attempt) -> str:
    """The last line of what went wrong; an exception with its whole message, as one line."""
    lines = attempt.error.split("\n")
    begins = [n for n, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if attempt.outcome == "failed" and begins:
        stack = range(begins[-1] + 1, len(lines))
        raised = next((n for n in stack if lines[n] and not lines[n][0].isspace()), None)
        if raised is not None:
            return " ".join(" ".join(lines[raised:]).split())
    return lines[-1]


def _column(arrow: Any, values: list[Any]) -> Any:
    try:
        return arrow.array(values)
    except arrow.ArrowException:
        texts = [None if value is None else json.dumps(value) for value in values]
        return arrow.array(texts)


def read_sweep(folder: str | Path) -> SweepResult:
    """Open a sweep's folder.

    Raises:
        ConfigError: The folder holds no sweep.
    """
    where = Path(folder).absolute()
    try:
        data = cast("dict[str, Any]", json.loads((where / FILE).read_text()))
    except (OSError, ValueError) as error:
        raise ConfigError("folder", str(folder), f"holds no sweep: {error}") from error
    ended, unfinished = read_journal(where)
    return SweepResult(
        where,
        data["program"],
        Matrix.from_json(data["matrix"]),
        tuple(ended),
        running=tuple(one.cell_id for one in unfinished),
    )
