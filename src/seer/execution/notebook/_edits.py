"""Edits of a notebook as plain data, and their effect on a notebook.

The same edits apply to the file, and to the shared document while a person has the notebook open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from seer.execution._result import ExecutionError, OutputPart, StreamText

Cell = dict[str, Any]
Notebook = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One change. Cells are named by id, because a person can move them in the meantime.

    All its values are JSON, because it is sent to the Jupyter server as JSON.
    """

    kind: str
    """`insert`, `source`, `outputs`, `delete` or `move`."""
    cell_id: str = ""
    index: int | None = None
    """The new position; None is the end."""
    cell: Cell | None = None
    source: str = ""
    outputs: Sequence[dict[str, Any]] = ()
    count: int | None = None


def new_notebook() -> Notebook:
    """An empty notebook for a Python kernel, which every Jupyter can open and run."""
    return {
        "cells": [],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {
                "codemirror_mode": {"name": "ipython", "version": 3},
                "file_extension": ".py",
                "mimetype": "text/x-python",
                "name": "python",
                "nbconvert_exporter": "python",
                "pygments_lexer": "ipython3",
            },
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def new_cell(cell_id: str, source: str, *, markdown: bool = False) -> Cell:
    """A cell that has not run."""
    cell: Cell = {
        "cell_type": "markdown" if markdown else "code",
        "id": cell_id,
        "metadata": {},
        "source": source,
    }
    return cell if markdown else {**cell, "execution_count": None, "outputs": []}


def apply_edit(notebook: Notebook, edit: Edit) -> None:
    """Change a notebook.

    Inserting the same cell twice adds it once, because an edit whose answer was lost is repeated.

    Raises:
        LookupError: The cell does not exist, perhaps because a person deleted it.
    """
    cells: list[Cell] = notebook["cells"]
    if edit.kind == "insert":
        assert edit.cell is not None
        if not any(cell.get("id") == edit.cell["id"] for cell in cells):
            cells.insert(len(cells) if edit.index is None else edit.index, edit.cell)
        return
    index = find_cell(cells, edit.cell_id)
    match edit.kind:
        case "source":
            cells[index]["source"] = edit.source
        case "outputs" if cells[index]["cell_type"] == "code":
            cells[index]["outputs"] = list(edit.outputs)
            cells[index]["execution_count"] = edit.count
        case "delete":
            del cells[index]
        case "move":
            cell = cells.pop(index)
            cells.insert(len(cells) if edit.index is None else edit.index, cell)
        case _:
            raise LookupError(f"cell {edit.cell_id!r} cannot be changed in this way ({edit.kind})")


def find_cell(cells: Sequence[Mapping[str, Any]], cell_id: str) -> int:
    """The index of a cell.

    Raises:
        LookupError: There is no such cell.
    """
    for index, cell in enumerate(cells):
        if cell.get("id") == cell_id:
            return index
    known = ", ".join(str(cell.get("id")) for cell in cells[-8:]) or "none"
    raise LookupError(f"no cell {cell_id!r} in the notebook; the last ones are: {known}")


def as_outputs(
    outputs: Sequence[OutputPart], error: ExecutionError | None, count: int | None
) -> list[dict[str, Any]]:
    """The output of an execution in the notebook format."""
    found: list[dict[str, Any]] = []
    for output in outputs:
        if isinstance(output, StreamText):
            last = found[-1] if found else {}
            if last.get("output_type") == "stream" and last["name"] == output.name:
                last["text"] += output.text
            else:
                text = {"output_type": "stream", "name": output.name, "text": output.text}
                found.append(text)
            continue
        entry: dict[str, Any] = {
            "output_type": "execute_result" if output.is_result else "display_data",
            "data": {mime: _form(mime, value) for mime, value in output.data.items()},
            "metadata": {},
        }
        if output.is_result:
            entry["execution_count"] = count
        found.append(entry)
    if error is not None:
        lines = error.traceback.split("\n") if error.traceback else []
        found.append(
            {
                "output_type": "error",
                "ename": error.name,
                "evalue": error.message,
                "traceback": lines,
            }
        )
    return found


def without_trust(notebook: Notebook) -> Notebook:
    """The notebook without the browser's metadata about cells that a person has run."""
    cells: list[Cell] = []
    for cell in notebook["cells"]:
        metadata = {key: value for key, value in cell["metadata"].items() if key != "trusted"}
        cells.append({**cell, "metadata": metadata})
    return {**notebook, "cells": cells}


def output_size(outputs: Sequence[Mapping[str, Any]]) -> int:
    """The approximate number of characters that outputs take in the file."""
    return sum(len(json.dumps(output)) for output in outputs)


def without_large(outputs: Sequence[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    """The outputs that fit. A stream keeps its beginning; another output becomes a note."""
    kept: list[dict[str, Any]] = []
    for output in outputs:
        size = output_size([output])
        if size > room and output["output_type"] == "stream":
            output = {**output, "text": output["text"][: max(room, 0)] + "\n[... left out ...]\n"}
        elif size > room:
            output = {"output_type": "stream", "name": "stderr", "text": "[an output left out]\n"}
        room -= size
        kept.append(output)
    return kept


def _form(mime: str, value: str) -> Any:
    """A value in the notebook format, which holds JSON types as JSON and all others as text."""
    if mime == "application/json" or mime.endswith("+json"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


@dataclass(frozen=True, kw_only=True)
class CellInfo:
    """A cell of the notebook."""

    cell_id: str
    kind: str
    """`code`, `markdown` or `raw`."""
    source: str
    execution_count: int | None = None
    outputs: tuple[Mapping[str, Any], ...] = ()
    """As in the notebook format."""

    @classmethod
    def from_cell(cls, cell: Mapping[str, Any]) -> CellInfo:
        """From the notebook format."""
        return cls(
            cell_id=str(cell.get("id", "")),
            kind=str(cell["cell_type"]),
            source=_joined(cell.get("source", "")),
            execution_count=cell.get("execution_count"),
            outputs=tuple(cell.get("outputs", ())),
        )

    @property
    def output_text(self) -> str:
        """The text of its outputs; for an output without text, its MIME types."""
        return "\n".join(_text_of(output) for output in self.outputs)


def _text_of(output: Mapping[str, Any]) -> str:
    match output.get("output_type"):
        case "stream":
            return _joined(output.get("text", ""))
        case "error":
            return f"{output.get('ename')}: {output.get('evalue')}"
        case _:
            data: Mapping[str, Any] = output.get("data", {})
            if "text/plain" in data:
                return _joined(data["text/plain"])
            return f"[{', '.join(data)}]"


def _joined(text: object) -> str:
    """Text as the notebook format has it: a string, or a list of lines."""
    return "".join(map(str, cast("list[object]", text))) if isinstance(text, list) else str(text)
