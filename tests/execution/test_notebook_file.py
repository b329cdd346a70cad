"""The notebook on disk is valid at any moment, and no edit is lost.

It tests the file itself, with edits at chosen moments.
"""

import json
import threading
from pathlib import Path

import pytest

from seer.execution import CellInfo, ExecutionError, RichOutput, StreamText
from seer.execution.notebook._edits import Edit, as_outputs, new_cell, output_size, without_large
from seer.execution.notebook._file import NotebookFile

nbformat = pytest.importorskip("nbformat")


def cells(path: Path) -> list[CellInfo]:
    return [CellInfo.from_cell(cell) for cell in json.loads(path.read_text())["cells"]]


def insert(cell_id: str, source: str, index: int | None = None, *, markdown: bool = False) -> Edit:
    return Edit(kind="insert", index=index, cell=new_cell(cell_id, source, markdown=markdown))


def test_a_new_notebook_is_valid(tmp_path: Path) -> None:
    NotebookFile(tmp_path / "a.ipynb")
    nbformat.validate(json.loads((tmp_path / "a.ipynb").read_text()))


def test_every_edit_leaves_a_valid_notebook(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    file = NotebookFile(path)
    outputs = as_outputs(
        [
            StreamText(name="stdout", text="a"),
            StreamText(name="stdout", text="b"),
            RichOutput(data={"image/png": "aGk=", "text/plain": "fig"}),
            RichOutput(data={"application/json": '{"a": 1}'}, is_result=True),
        ],
        ExecutionError(name="ValueError", message="no", traceback="line 1\nline 2"),
        4,
    )
    edits = [
        insert("c1", "x = 1"),
        insert("m1", "# Title", 0, markdown=True),
        insert("c2", "x"),
        Edit(kind="outputs", cell_id="c1", outputs=outputs, count=4),
        Edit(kind="source", cell_id="c2", source="x + 1"),
        Edit(kind="move", cell_id="c2", index=0),
        Edit(kind="move", cell_id="c2"),
        Edit(kind="delete", cell_id="m1"),
    ]
    for edit in edits:
        again = Edit(**json.loads(json.dumps(vars(edit))))
        assert again.kind == edit.kind
        file.edit(again)
        nbformat.validate(json.loads(path.read_text()))
    found = cells(path)
    assert [cell.cell_id for cell in found] == ["c1", "c2"]
    assert found[1].source == "x + 1"
    assert [output["output_type"] for output in found[0].outputs] == [
        "stream",
        "display_data",
        "execute_result",
        "error",
    ]
    assert found[0].outputs[2]["data"]["application/json"] == {"a": 1}
    assert found[0].output_text == "ab\nfig\n[application/json]\nValueError: no"


def test_what_a_person_saved_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    file = NotebookFile(path)
    file.edit(insert("c1", "agent"))
    notebook = json.loads(path.read_text())
    notebook["cells"][0]["source"] = "a person's edit"
    notebook["cells"].append(new_cell("p1", "a person's cell"))
    path.write_text(json.dumps(notebook))
    file.edit(insert("c2", "agent again"))
    file.edit(Edit(kind="outputs", cell_id="c1", outputs=(), count=1))
    assert [cell.source for cell in cells(path)] == [
        "a person's edit",
        "a person's cell",
        "agent again",
    ]


def test_a_cell_that_a_person_deleted_is_missed_by_name(tmp_path: Path) -> None:
    file = NotebookFile(tmp_path / "a.ipynb")
    with pytest.raises(LookupError, match="no cell 'c9'"):
        file.edit(Edit(kind="delete", cell_id="c9"))
    with pytest.raises(LookupError, match="cannot be changed"):
        file.edit(insert("m1", "text", markdown=True))
        file.edit(Edit(kind="outputs", cell_id="m1"))


@pytest.mark.parametrize(
    "broken", ["", "{", "[]", '{"nbformat": 3}', '{"nbformat": 4, "cells": [1]}']
)
def test_a_broken_file_is_put_aside_and_the_work_goes_on(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "a.ipynb"
    file = NotebookFile(path)
    file.edit(insert("c1", "precious"))
    path.write_text(broken)
    file.edit(insert("c2", "next"))
    assert [cell.source for cell in cells(path)] == ["precious", "next"]
    (aside,) = tmp_path.glob("a.broken-*")
    assert aside.read_text() == broken


def test_a_file_that_was_removed_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    file = NotebookFile(path)
    file.edit(insert("c1", "precious"))
    path.unlink()
    file.edit(insert("c2", "next"))
    assert [cell.source for cell in cells(path)] == ["precious", "next"]


def test_cells_without_ids_get_some(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    file = NotebookFile(path)
    old: dict[str, object] = {"cell_type": "markdown", "metadata": {}, "source": ["a", "b"]}
    notebook = json.loads(path.read_text())
    path.write_text(json.dumps({**notebook, "cells": [old]}))
    (cell,) = file.read()["cells"]
    assert cell["id"]
    assert CellInfo.from_cell(cell).source == "ab"


def test_two_writers_lose_nothing_and_readers_see_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    NotebookFile(path)
    done = threading.Event()
    torn: list[str] = []

    def read() -> None:
        while not done.is_set():
            try:
                json.loads(path.read_text())
            except ValueError as error:
                torn.append(str(error))

    def write(name: str) -> None:
        file = NotebookFile(path)
        for number in range(20):
            file.edit(insert(f"{name}{number}", "x" * 1000))

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert len(cells(path)) == 40
    assert torn == []


def test_outputs_beyond_their_room_are_left_out() -> None:
    outputs = as_outputs(
        [
            StreamText(name="stdout", text="x" * 500),
            RichOutput(data={"image/png": "y" * 500}),
            StreamText(name="stdout", text="end"),
        ],
        None,
        1,
    )
    kept = without_large(outputs, 300)
    assert output_size(kept) < 700
    assert [output["output_type"] for output in kept] == ["stream", "stream", "stream"]
    assert kept[0]["text"].startswith("x" * 300)
    assert without_large(outputs, 10_000) == outputs
