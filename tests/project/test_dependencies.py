"""Every package that Seer imports is declared, in the dependencies or in an extra."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import seer

ROOT = Path(seer.__file__).parent
PROJECT = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
CORE = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = [Requirement(text) for name in PROJECT["optional-dependencies"].values() for text in name]

# Folders whose imports are resolved in another environment than Seer's.
ELSEWHERE = {
    "execution/_inside": "runs in a jail, with the session's own packages",
    "cli/template": "an experiment of the user's",
    "interfaces/toolkit": "runs in a sandbox, with the sandbox's own packages",
}
# Modules that Seer uses only if they are installed.
IF_THERE = {
    ("environment/packages/_index_server.py", "certifi"),
    ("rpc/values/_tables.py", "pandas"),
    ("runs/export/_tracing.py", "opentelemetry"),
}


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The packages that a module imports when it runs, with line numbers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for inner in node.orelse:
                yield from imported(inner)
        elif isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0], node.lineno
        else:
            yield from imported(node)


def names(requirements: list[Requirement]) -> set[str]:
    """Distributions, in the spelling in which they are compared."""
    return {canonicalize_name(requirement.name) for requirement in requirements}


def test_every_import_is_declared() -> None:
    declared = names([*CORE, *EXTRAS])
    homes = packages_distributions()
    missing: dict[str, list[str]] = {}
    for file in sorted(ROOT.rglob("*.py")):
        where = file.relative_to(ROOT).as_posix()
        if where.startswith(tuple(ELSEWHERE)):
            continue
        for package, line in imported(ast.parse(file.read_text(encoding="utf-8"))):
            if package in sys.stdlib_module_names or package == "seer":
                continue
            if (where, package) in IF_THERE:
                continue
            known = {canonicalize_name(home) for home in homes.get(package, [package])}
            if not known & declared:
                missing.setdefault(package, []).append(f"{where}:{line}")
    assert not missing, f"imported, but declared nowhere in pyproject.toml: {missing}"


def closure(requirements: list[Requirement]) -> set[str]:
    """The packages that an installer installs for these requirements."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        wanted = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if name in found:
            continue
        found.add(name)
        for text in requires(name) or []:
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate(each) for each in wanted):
                inner.marker = None
                waiting.append(inner)
    return found


def test_every_package_can_be_imported_without_any_extra() -> None:
    there = closure(CORE)
    absent = sorted(
        package
        for package, homes in packages_distributions().items()
        if not {canonicalize_name(home) for home in homes}
        & (there | {canonicalize_name(PROJECT["name"])})
        and re.fullmatch(r"[A-Za-z]\w*", package)
    )
    packages = sorted(
        p.parent.name for p in ROOT.glob("*/__init__.py") if p.parent.name != "testing"
    )
    code = (
        f"import sys\nfor name in {absent!r}: sys.modules[name] = None\n"
        f"for name in {packages!r}: __import__('seer.' + name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
