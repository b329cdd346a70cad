"""One cell of a sweep, and how an experiment reads its cell and reports its result.

The cell comes in an environment variable, and the result is a file that is replaced atomically.
Outside a sweep, an experiment gets a cell with default values, so the same program works there too.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seer._files import replace_file
from seer.errors import ConfigError
from seer.runs._info import finite

CELL = "SEER_CELL"
RESULT = "SEER_CELL_RESULT"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of a sweep. None means the experiment's own default."""

    agent: str | None = None
    """The agent. The sweep sets it as `SEER_AGENT`, which replaces the agent in the program."""
    tools: str | None = None
    """The name of a tool set. The experiment defines what the name means."""
    model: str | None = None
    """The model under study: hub id, folder or organism."""
    seed: int = 0
    """The same for all cells of one repetition, so that they can be compared in pairs."""
    repetition: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The matrix's further settings, the same in all cells."""

    @property
    def id(self) -> str:
        """A readable name for files. Equal cells have equal ids."""
        text = json.dumps(self.to_json(), sort_keys=True)
        words = "-".join(_word(part) for part in (self.agent, self.tools, self.model) if part)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{words or 'cell'}-{self.repetition}-{digest}"

    def to_json(self) -> dict[str, Any]:
        """The cell as JSON data."""
        return {**asdict(self), "settings": dict(self.settings)}


def _word(text: str) -> str:
    kept = "".join(c if c.isalnum() or c in "._" else "_" for c in text.rpartition("/")[2])
    return kept[:24]


def current_cell() -> Cell:
    """The cell that this process runs; outside a sweep, a cell with default values.

    Raises:
        ConfigError: `SEER_CELL` is set and is not a cell.
    """
    text = os.environ.get(CELL)
    if not text:
        return Cell()
    try:
        return Cell(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(CELL, text, f"is not a cell of a sweep: {error}") from error


def report(score: float | None = None, **values: Any) -> None:
    """Report the result of this cell. A later call replaces an earlier one.

    Outside a sweep, this does nothing.

    Args:
        score: The score; for example 1 for "found" and 0 for "not found".
        values: Further numbers and texts for the table.

    Raises:
        ConfigError: The score is not a finite number, or a value cannot be written as JSON.
    """
    if score is not None:
        score = finite("report(score=)", score)
    try:
        text = json.dumps({"score": score, "values": values}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError("report", values, f"accepts only numbers and texts: {error}") from error
    target = os.environ.get(RESULT)
    if target:
        replace_file(Path(target), text)
