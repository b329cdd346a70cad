"""The ready-made interfaces are files that can be served, or copied and changed."""

import ast
from pathlib import Path

import pytest

from seer import interfaces
from seer.rpc._bundles import interface_files


def test_interfaces_travel_with_the_modules_they_are_made_of() -> None:
    folder = interfaces.whitebox.parent
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    white, black = interface_files(interfaces.whitebox), interface_files(interfaces.blackbox)
    assert set(white) == modules - {"blackbox.py"}
    assert set(black) < set(white) | {"blackbox.py"}
    assert "_probes.py" not in black


def test_the_toolkit_needs_nothing_of_seer_but_the_gate() -> None:
    for path in interfaces.whitebox.parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("seer"):
                assert node.module in ("seer.rpc", "seer.errors"), f"{path.name}:{node.lineno}"


def test_a_copy_can_be_changed(tmp_path: Path) -> None:
    file = interfaces.copy(interfaces.whitebox, tmp_path / "mine")
    assert file == tmp_path / "mine" / "whitebox.py"
    assert interface_files(file) == interface_files(interfaces.whitebox)
    assert not list(tmp_path.rglob("__pycache__"))
    with pytest.raises(FileExistsError):
        interfaces.copy(interfaces.whitebox, tmp_path / "mine")
