"""A notebook in a file of this host: read again before every change, and replaced atomically.

A person may edit the file with another program, so every edit starts from its present content.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import logging
import os
import time
from collections.abc import Container, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from seer._files import replace_file
from seer.execution.notebook._edits import Edit, Notebook, apply_edit, new_notebook

logger = logging.getLogger(__name__)


class NotebookFile:
    """The notebook on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._good = new_notebook()
        if not path.exists():
            self._write(self._good)

    def read(self) -> Notebook:
        """The notebook as it is now.

        A file that is no longer a notebook is renamed, and the last valid state is used.
        """
        try:
            loaded: object = json.loads(self.path.read_bytes())
            notebook = checked_notebook(loaded)
        except FileNotFoundError:
            return self._copy()
        except (ValueError, RecursionError) as error:
            aside = self.path.with_suffix(f".broken-{time.strftime('%H%M%S')}.ipynb")
            self.path.rename(aside)
            logger.warning("%s is not a notebook (%s); kept as %s", self.path, error, aside.name)
            return self._copy()
        self._good = notebook
        return self._copy()

    def edit(self, edit: Edit) -> None:
        """Apply one change and save.

        Raises:
            LookupError: The cell no longer exists.
        """
        with self._locked():
            notebook = self.read()
            apply_edit(notebook, edit)
            self._write(notebook)
            self._good = notebook

    def modified(self) -> int:
        """When it was last written, in nanoseconds; 0 if there is no file."""
        try:
            return self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def replace(self, notebook: Notebook) -> None:
        """Replace the whole notebook."""
        with self._locked():
            self._write(notebook)
            self._good = notebook

    def _copy(self) -> Notebook:
        return cast("Notebook", json.loads(json.dumps(self._good)))

    def _write(self, notebook: Notebook) -> None:
        replace_file(
            self.path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", durable=True
        )

    @contextmanager
    def _locked(self) -> Generator[None]:
        lock = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def checked_notebook(loaded: object) -> Notebook:
    """Check the parts of a notebook that edits rely on, and no others.

    Raises:
        ValueError: It is not a notebook.
    """
    if not isinstance(loaded, dict):
        raise ValueError("it is not a JSON object")
    notebook = cast("dict[str, Any]", loaded)
    cells = notebook.get("cells")
    if notebook.get("nbformat") != 4 or not isinstance(cells, list):
        raise ValueError("it is not in notebook format 4")
    taken: set[str] = set()
    for cell in cast("list[object]", cells):
        if isinstance(cell, dict):
            taken.add(str(cast("dict[str, Any]", cell).get("id")))
    for cell in cast("list[object]", cells):
        if not isinstance(cell, dict) or "cell_type" not in cell:
            raise ValueError("a cell has no type")
        known = cast("dict[str, Any]", cell)
        if "id" not in known:
            known["id"] = _free_id(known, taken)
            taken.add(known["id"])
        if not isinstance(known.setdefault("metadata", {}), dict):
            raise ValueError("a cell's metadata is not a JSON object")
    return notebook


def _free_id(cell: dict[str, Any], taken: Container[str]) -> str:
    """An id for a cell that has none: the same one whenever the file is read."""
    content = json.dumps([cell["cell_type"], cell.get("source")], sort_keys=True)
    ids = (
        hashlib.sha256(f"{number} {content}".encode()).hexdigest() for number in itertools.count()
    )
    return next(found[:8] for found in ids if found[:8] not in taken)
