"""What the scripts import from Seer exists; no other check reads them."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" or path.read_bytes().startswith(b"#!/usr/bin/env python")


SCRIPTS = sorted(
    path for path in (ROOT / "scripts").rglob("*") if path.is_file() and _is_python(path)
)


def test_scripts_are_found() -> None:
    assert ROOT / "scripts/show-run" in SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_names_that_a_script_imports_exist(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "seer":
            module = importlib.import_module(node.module or "")
            missing = [name.name for name in node.names if not hasattr(module, name.name)]
            assert not missing, f"{node.module} has no {missing}"
