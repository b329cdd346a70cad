"""Packages import only what is below them."""

import ast
import re
import sys
from pathlib import Path

import pytest

import seer

ROOT = Path(seer.__file__).parent

# Top to bottom; a package may import only what stands after it.
ORDER = [
    "__main__",
    "cli",
    "_program",
    "viewer",
    "sweeps",
    "scoring",
    "testing",
    "inspect",
    "harness",
    "mcp",
    "tools",
    "execution",
    "runs",
    "events",
    "environment",
    "workspace",
    "rpc",
    "providers",
    "isolation",
    "console",
    "_wiring",
    "_loopback",
    "_redact",
    "_settings",
    "_ending",
    "_sync",
    "_sockets",
    "_transient",
    "_janitor",
    "_paths",
    "_unix_sockets",
    "_name_conflict",
    "_files",
    "_statistics",
    "_checks",
    "errors",
]

# The same inside `rpc`, bottom to top; the client and the server do not know each other.
RPC_BELOW = {
    "wire": set[str](),
    "values": {"wire"},
    "interface": {"wire", "values"},
    "library": {"wire", "values", "interface"},
    "client": {"wire", "values", "interface", "library"},
    "server": {"wire", "values", "interface", "library"},
    "replicas": {"wire", "values", "interface", "library", "client", "server"},
}
# The program `python -m seer.rpc.server` puts the parts together, so it is above all of them.
RPC_PROGRAMS = {"server/__main__.py"}

# The one module that imports from above; it says why. Only these packages may use it.
WIRING = "_wiring"
WIRED = {"environment", "execution"}

# Ready-made files that run in sandboxes or carry data; they may import only exceptions, the gate's
# names and one helper for intervals.
LEAVES = {"interfaces", "organisms"}
# The packages above the machinery, which may import them.
USERS = {"cli", "scoring", "sweeps", "viewer"}


NAMES_MODULE = re.compile(r"seer\.(\w+)(\.\w+)*(:\w+)?")
PACKAGES = {p.name.removesuffix(".py") for p in ROOT.iterdir() if p.suffix == ".py" or p.is_dir()}


def modules_of(file: Path) -> list[tuple[str, int]]:
    """The modules of `seer` that a file imports anywhere in it, with line numbers."""
    package = ("seer", *file.relative_to(ROOT).with_suffix("").parts)
    return modules_in(file.read_text(), package)


def modules_in(source: str, package: tuple[str, ...]) -> list[tuple[str, int]]:
    """The modules of `seer` that a source imports.

    A text that is the name of a module counts as an import: it is one for `importlib`,
    `sys.modules`, `python -m` and tables of either.
    """
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level]
            names = [".".join([*base, *(node.module or "").split(".")]).rstrip(".")]
            if not node.module:
                names = [f"{names[0]}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module in ("seer", "seer.rpc"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.removesuffix(".")  # the beginning of an f-string
            named = NAMES_MODULE.fullmatch(text)
            names = [text.partition(":")[0]] if named and named[1] in PACKAGES else []
        line = getattr(node, "lineno", 0)
        found += [(n, line) for n in names if n.startswith("seer.")]
    return found


def imports_of(file: Path) -> list[tuple[str, int]]:
    """The `seer.X` packages that a file imports anywhere in it, with line numbers."""
    return [(name.split(".")[1], line) for name, line in modules_of(file)]


@pytest.mark.parametrize(
    "source",
    [
        "import seer.mcp",
        "from seer.mcp import load_sdk",
        "from seer import mcp",
        "def f():\n    from ..mcp._open import open_stdio_server",
        "import importlib\nimportlib.import_module('seer.mcp')",
        "import sys\nsys.modules.get('seer.mcp._open')",
        "import sys\nsys.modules['seer.mcp']",
        "import importlib\ndef f(x): importlib.import_module(f'seer.mcp.{x}')",
        "PACKAGE = 'seer.mcp:open_stdio_server'",
    ],
)
def test_no_way_to_import_is_overlooked(source: str) -> None:
    found = modules_in(source, ("seer", "execution", "_x"))
    assert ("mcp", source.count("\n") + 1) in [(name.split(".")[1], line) for name, line in found]


def test_every_package_has_a_place_in_the_order() -> None:
    unplaced = PACKAGES - set(ORDER) - LEAVES - {"__init__", "py.typed", "__pycache__"}
    assert not unplaced, f"give these a place in ORDER: {sorted(unplaced)}"


def test_imports_point_only_downward() -> None:
    wrong: list[str] = []
    for file in ROOT.rglob("*.py"):
        owner = file.relative_to(ROOT).parts[0].removesuffix(".py")
        if owner in ("__init__", WIRING):
            continue
        for target, line in imports_of(file):
            if target == owner or target.startswith("__"):
                continue
            below = (
                {"rpc", "errors", "_statistics"}
                if owner in LEAVES
                else {*ORDER[ORDER.index(owner) + 1 :]}
            )
            if owner in USERS:
                below |= LEAVES
            if target not in below or (target == WIRING and owner not in WIRED):
                wrong.append(f"{file.relative_to(ROOT.parent)}:{line} imports seer.{target}")
    assert not wrong, "\n".join(wrong)


def test_every_folder_of_rpc_has_a_place_in_the_order() -> None:
    folders = {p.name for p in (ROOT / "rpc").iterdir() if p.is_dir()} - {"__pycache__"}
    assert folders == set(RPC_BELOW)


def test_imports_inside_rpc_point_only_downward() -> None:
    wrong: list[str] = []
    for file in (ROOT / "rpc").rglob("*.py"):
        path = file.relative_to(ROOT / "rpc")
        owner = path.parts[0]
        if owner not in RPC_BELOW or path.as_posix() in RPC_PROGRAMS:
            continue
        for name, line in modules_of(file):
            parts = name.split(".")
            if parts[1] != "rpc":
                continue
            target = parts[2] if len(parts) > 2 else "__init__"
            if target != owner and target not in RPC_BELOW[owner]:
                wrong.append(f"rpc/{path}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_importing_seer_imports_no_submodule() -> None:
    import subprocess

    code = "import sys, seer; print([m for m in sys.modules if m.startswith('seer.')])"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"
