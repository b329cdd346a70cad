"""Most tests use Seer's public names, so that its internals can change without them."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]

MOST_FILES = 109
"""How many test files may import a private module of Seer. Lower it when there are fewer."""


def imports_private_module(source: str) -> bool:
    """Whether a file imports `seer.x._y`, or a private name of a package of Seer."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, *parts = name.split(".")
            if first == "seer" and any(is_private(part) for part in parts):
                return True
    return False


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def test_the_number_of_tests_with_private_imports_does_not_grow() -> None:
    found = [
        path.relative_to(TESTS).as_posix()
        for path in sorted(TESTS.rglob("*.py"))
        if imports_private_module(path.read_text())
    ]
    assert len(found) <= MOST_FILES, found
