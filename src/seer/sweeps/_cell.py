"""One cell of a sweep, and how an experiment learns which one it is.

The cell travels in the environment; the answer is a file that is written whole or not at all. An
experiment that runs by itself gets a plain cell, so the same program works in and out of a sweep.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seer.errors import ConfigError

CELL = "SEER_CELL"
RESULT = "SEER_CELL_RESULT"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one run of a sweep is about. None: whatever the experiment does by default."""

    agent: str | None = None
    """Who runs: it is set as `SEER_AGENT`, which replaces the agent that the program names."""
    tools: str | None = None
    """The name of a tool set, which the experiment knows."""
    model: str | None = None
    """The model under study: hub id, folder or organism."""
    seed: int = 0
    """The same for all cells of one repetition, so that they can be compared in pairs."""
    repetition: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the matrix says beside the axes, the same in all cells."""

    @property
    def id(self) -> str:
        """A name for files: readable, and the same for the same cell."""
        text = json.dumps(self.to_json(), sort_keys=True)
        words = "-".join(_word(part) for part in (self.agent, self.tools, self.model) if part)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{words or 'cell'}-{self.repetition}-{digest}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "settings": dict(self.settings)}


def _word(text: str) -> str:
    kept = "".join(c if c.isalnum() or c in "._" else "_" for c in text.rpartition("/")[2])
    return kept[:24]


def current_cell() -> Cell:
    """The cell that this process is to run; a plain one outside a sweep.

    Raises:
        ConfigError: `SEER_CELL` is set and is no cell.
    """
    text = os.environ.get(CELL)
    if not text:
        return Cell()
    try:
        return Cell(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(CELL, text, f"is no cell of a sweep: {error}") from error


def report(score: float | None = None, **values: Any) -> None:
    """Say what came of this cell; the last word counts. Outside a sweep nothing is kept.

    Args:
        score: How well it went; 0 and 1 for "not found" and "found".
        values: Anything else for the table: numbers and texts.

    Raises:
        ConfigError: The score is no finite number, or a value is no plain data.
    """
    if score is not None and not math.isfinite(score):
        raise ConfigError("report(score=)", score, "must be a finite number, or None")
    try:
        text = json.dumps({"score": score, "values": values}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError("report", values, f"takes numbers and texts only: {error}") from error
    target = os.environ.get(RESULT)
    if target:
        part = Path(f"{target}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(target)
