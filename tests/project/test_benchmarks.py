"""The names that benchmarks import exist; benchmarks run too rarely to notice."""

import ast
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _names(tree: ast.Module) -> set[str]:
    found = {
        alias.asname or alias.name
        for n in ast.walk(tree)
        if isinstance(n, ast.ImportFrom)
        for alias in n.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@pytest.mark.parametrize("file", sorted(BENCHMARKS.rglob("*.py")), ids=lambda file: file.name)
def test_what_a_benchmark_imports_from_another_exists(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks."):
            source = BENCHMARKS.parent / f"{(node.module or '').replace('.', '/')}.py"
            if not source.exists():
                source = source.with_suffix("") / "__init__.py"
            known = _names(ast.parse(source.read_text()))
            missing = {alias.name for alias in node.names} - known
            missing = {n for n in missing if not (source.parent / f"{n}.py").exists()}
            assert not missing, f"{file.name}:{node.lineno}: {source.name} has no {sorted(missing)}"
