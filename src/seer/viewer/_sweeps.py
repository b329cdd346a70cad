"""A sweep for the page: its cells, and the score of each combination with its interval."""

import dataclasses
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from seer.errors import MissingExtraError
from seer.sweeps import SweepResult, read_sweep, summarize
from seer.sweeps._results import FILE
from seer.sweeps._summary import Group


def runs_of(folder: Path) -> Path:
    """The folder of runs to show. For a sweep's folder, this is the folder `runs` in it."""
    return folder / "runs" if (folder / FILE).is_file() else folder


def sweep_around(runs: Path) -> Path | None:
    """The sweep that a folder of runs belongs to."""
    return runs.parent if (runs.parent / FILE).is_file() else None


def describe(folder: Path) -> dict[str, Any]:
    """The present state of the sweep.

    Raises:
        ConfigError: There is no sweep in the folder.
    """
    sweep = read_sweep(folder)
    cells = [_cell(row, sweep) for row in sweep.rows()]
    groups, note = _groups(sweep)
    return {
        "name": folder.name,
        "program": Path(sweep.program).name,
        "done": sweep.done,
        "running": len(sweep.running),
        "cost_usd": sweep.cost_usd,
        "cells": cells,
        "groups": [_group(group, cells) for group in groups],
        "note": note,
    }


def run_folder(folder: Path, run_id: str) -> Path | None:
    """The folder of a sweep's run, by its id, even while its cell is running."""
    found = folder.glob(f"cells/*/attempt-*/runs/{run_id}/run.json")
    return next((path.parent for path in found), None)


def _cell(row: dict[str, Any], sweep: SweepResult) -> dict[str, Any]:
    kept = {name: row[name] for name in ("agent", "tools", "model", "repetition", "seed")}
    running = row["cell"] in sweep.running
    return {
        **kept,
        "outcome": "running" if running else row["outcome"],
        "score": None if running else _number(row["score"]),
        "seconds": row["seconds"],
        "cost_usd": row["cost_usd"],
        "attempts": row["attempts"],
        "error": row["error"],
        "runs": [path.name for path in sweep.run_folders(row["cell"])],
    }


def _groups(sweep: SweepResult) -> tuple[tuple[Group, ...], str]:
    try:
        return _summarized(sweep.folder, len(sweep.attempts)), ""
    except MissingExtraError as error:
        return (), str(error)


@lru_cache(maxsize=4)
def _summarized(folder: Path, attempts: int) -> tuple[Group, ...]:
    """The groups, cached by the number of ended attempts, because intervals are slow."""
    return summarize(read_sweep(folder)).groups


def _group(group: Group, cells: list[dict[str, Any]]) -> dict[str, Any]:
    axes = ("agent", "tools", "model")
    mine = [cell for cell in cells if all(cell[axis] == getattr(group, axis) for axis in axes)]
    costs = [cell["cost_usd"] for cell in mine if cell["cost_usd"] is not None]
    numbers = {name: _number(getattr(group, name)) for name in ("mean", "low", "high")}
    return {
        **dataclasses.asdict(group),
        **numbers,
        "label": group.label,
        "cost_usd": sum(costs) if costs else None,
    }


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
