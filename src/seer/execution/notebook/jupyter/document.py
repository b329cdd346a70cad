"""The notebook as a shared document, which merges the edits of the agent and of a person."""

from __future__ import annotations

import contextlib
from typing import Any

from jupyter_server.serverapp import ServerApp
from jupyter_server_ydoc.utils import OutOfBandChanges

from seer.execution.notebook._edits import Edit, Notebook, find_cell, without_trust


async def read_document(app: ServerApp, path: str) -> Notebook:
    """The present state of the notebook."""
    document = await _document(app, path)
    return without_trust(document.get())


async def save_document(app: ServerApp, path: str) -> None:
    """Save the notebook now; Jupyter itself saves it a moment after every change."""
    document = await _document(app, path)
    settings: Any = app.web_app.settings
    loader = _extension(app).file_loaders[settings["file_id_manager"].get_id(path)]
    # Jupyter itself loads what a person has saved in the meantime.
    with contextlib.suppress(OutOfBandChanges):
        content = await document.aget()
        await loader.maybe_save_content({"format": "json", "type": "notebook", "content": content})


async def open_document(app: ServerApp, path: str) -> None:
    """Load the document from the file, and keep it loaded.

    Jupyter adds an empty cell to an empty notebook, for people to type into. It is removed, because
    the agent would never fill it.
    """
    document = await _document(app, path)
    cells = document.ycells
    if len(cells) == 1 and not str(cells[0]["source"]) and not len(cells[0].get("outputs", ())):
        del cells[0]


async def edit_document(app: ServerApp, path: str, edit: Edit) -> None:
    """Apply one of the agent's edits.

    Raises:
        LookupError: The cell no longer exists.
    """
    document = await _document(app, path)
    cells = document.ycells
    if edit.kind == "insert":
        cell = document.create_ycell(edit.cell)
        cells.insert(len(cells) if edit.index is None else min(edit.index, len(cells)), cell)
        return
    index = find_cell([{"id": cell.get("id")} for cell in cells], edit.cell_id)
    match edit.kind:
        case "source":
            document.set_cell(index, source=edit.source)
        case "outputs":
            outputs = cells[index]["outputs"]
            with document.ydoc.transaction():
                outputs.clear()
                outputs.extend([_output(output) for output in edit.outputs])
                cells[index]["execution_count"] = edit.count
        case "delete":
            del cells[index]
        case "move":
            target = len(cells) - 1 if edit.index is None else min(edit.index, len(cells) - 1)
            cells.move(index, target)
        case _:
            raise LookupError(f"cell {edit.cell_id!r} cannot be changed in this way ({edit.kind})")


def _output(output: dict[str, Any]) -> Any:
    """An output in the document's form: streamed text can grow, everything else is plain data."""
    from pycrdt import Map, Text

    if output["output_type"] == "stream":
        return Map({**output, "text": Text(output["text"])})
    return Map(output)


def _extension(app: ServerApp) -> Any:
    extensions: Any = app.extension_manager.extension_apps["jupyter_server_ydoc"]
    (ydoc,) = extensions
    return ydoc


async def _document(app: ServerApp, path: str) -> Any:
    return await _extension(app).get_document(
        path=path, content_type="notebook", file_format="json", copy=False, create=True
    )
