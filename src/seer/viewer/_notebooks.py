"""Reads the notebook of a run: the recorded one, or the live one of a running run.

An agent can write to the folder of a live notebook. So this follows no links, and refuses a file
that is too large.
"""

import json
from pathlib import Path
from typing import Any, cast

from seer.errors import PathEscapeError, RecordError
from seer.isolation import read_bytes
from seer.runs import Run

LIMIT = 64 * 1024 * 1024
KEPT = "notebook.ipynb"


def read_notebook(run: Run) -> dict[str, Any] | None:
    """The notebook's JSON; None if the run has none.

    Raises:
        RecordError: The notebook exists, but cannot be read.
    """
    kept = run.folder / "artifacts" / KEPT
    live = run.info.notebook
    path = kept if kept.is_file() else Path(live) if live else None
    if path is None:
        return None
    try:
        found = json.loads(read_bytes(path.parent, path.name, limit=LIMIT))
    except FileNotFoundError:
        return None
    except (OSError, PathEscapeError, ValueError, RecursionError) as error:
        raise RecordError(f"the notebook cannot be read: {error}") from error
    notebook = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if not isinstance(notebook.get("cells"), list):
        raise RecordError("the notebook cannot be read: it has no cells")
    return notebook
