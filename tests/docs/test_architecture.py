"""The pages about the source name existing folders, files and functions."""

import ast
import re
from pathlib import Path

import pytest

import seer

ROOT = Path(seer.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
_REFERENCE = re.compile(r"`([\w./]+\.(?:py|js))`(?::((?:,? `[\w.]+`)+))?")


def defined_in(file: Path) -> set[str]:
    """The functions and classes of a file, and `Class.method`."""
    if file.suffix == ".js":
        return set(
            re.findall(r"^export (?:async )?(?:function|class) (\w+)", file.read_text(), re.M)
        )
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, methods)}
    return found


@pytest.mark.parametrize("page", ["architecture.md", "glossary.md"])
def test_every_file_and_function_that_a_page_names_is_there(page: str) -> None:
    text = " ".join((DOCS / page).read_text().split())
    references = [found for found in _REFERENCE.findall(text) if found[1] or "/" in found[0]]
    assert references
    missing: list[str] = []
    for path, names in references:
        if path.startswith("tests/"):
            continue
        if not (ROOT / path).is_file():
            missing.append(path)
            continue
        wanted = re.findall(r"`([\w.]+)`", names)
        missing += [f"{path}: {name}" for name in wanted if name not in defined_in(ROOT / path)]
    assert not missing


def test_the_tree_of_the_architecture_page_has_every_folder() -> None:
    page = (DOCS / "architecture.md").read_text()
    listed = re.findall(r"^[│ ]*[├└]── (\w+)/ ", page, re.M)
    files = (path for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".pyc")
    folders = {path.parent for path in files} - {ROOT}
    there = sorted(
        folder.name
        for folder in folders | {parent for folder in folders for parent in folder.parents}
        if ROOT in folder.parents
        and "__pycache__" not in folder.parts
        and not {"adapters", "instances"} & {parent.name for parent in folder.parents}
    )
    assert sorted(listed) == there


def test_the_glossary_is_short_and_in_order() -> None:
    terms = re.findall(r"^\| ([a-z ]+) \| [A-Z]", (DOCS / "glossary.md").read_text(), re.M)
    assert terms == sorted(terms)
    assert 0 < len(terms) <= 25


def test_every_decision_is_in_the_list() -> None:
    folder = DOCS / "decisions"
    listed = re.findall(r"\]\((\S+\.md)\)", (folder / "README.md").read_text())
    assert sorted(listed) == sorted({path.name for path in folder.glob("*.md")} - {"README.md"})
