"""The size of the source, before its restructuring and now: `python -m tests.project.figures`.

With `--write` the tables replace those in `docs/decisions/structure.md`. The old trees are read
from the repository's history, so a shallow clone can only show the present one.
"""

import ast
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.project.test_import_direction import ORDER, RPC_BELOW, WIRING, modules_in

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "decisions" / "structure.md"
TREES = {"first": "e43d5ec", "before": "215e572"}
"""The tree that the restructuring was planned for, and the last one before it began."""

Tree = dict[str, str]
"""The files of `src/seer`, `tests` and `docs`, by path."""

# Files that name one existing example of each kind, because a new one needs a line in each.
EXAMPLES = [
    ("a header of a call", "`seer-deadline`", r"seer-deadline|\.deadline\b|\bdeadline[:=]", "rpc"),
    ("a kind of value", "`timedelta`", r"(?<!\w)timedelta\b", "rpc"),
    ("a unit of budgets", "`gpu_seconds`", r"gpu_seconds", ""),
    ("an event type", "`LimitReached`", r"\bLimitReached\b", "harness|events"),
    ("a vendor", "`gemini`", r"\"gemini\"", "harness|cli|testing|runs"),
    ("a provider", "`runpod`", r"\"runpod\"", ""),
    ("a command", "`seer verify`", r"_verify\b|\"verify\"", "cli"),
]


def read_tree(commit: str | None) -> Tree:
    """The tree of a commit, or of the working folder."""
    places = ("src/seer", "tests", "docs")
    if commit is None:
        paths = (path for place in places for path in (ROOT / place).rglob("*"))
        kept = {path.relative_to(ROOT).as_posix(): path for path in paths if path.is_file()}
        return {name: path.read_text() for name, path in kept.items() if _is_text(name)}
    packed = subprocess.run(
        ["git", "archive", commit, *places], cwd=ROOT, capture_output=True, check=True
    ).stdout
    found: Tree = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            content = archive.extractfile(member) if _is_text(member.name) else None
            if content is not None:
                found[member.name] = content.read().decode()
    return found


def _is_text(name: str) -> bool:
    return name.endswith((".py", ".js", ".md")) and "__pycache__" not in name


def source(tree: Tree, suffix: str = ".py") -> Iterator[tuple[str, str]]:
    """The files of the package, by paths in it."""
    for name, text in tree.items():
        if name.startswith("src/seer/") and name.endswith(suffix):
            yield name.removeprefix("src/seer/"), text


def packages(tree: Tree) -> dict[str, tuple[int, int]]:
    """Files and lines of each package; the modules beside them together."""
    found: dict[str, tuple[int, int]] = {}
    for name, text in source(tree):
        package = name.split("/")[0] if "/" in name else "modules beside them"
        files, lines = found.get(package, (0, 0))
        found[package] = (files + 1, lines + text.count("\n"))
    return found


def public_names(tree: Tree) -> int:
    """The names in `__all__` of all packages."""
    count = 0
    for name, text in source(tree):
        if name.count("/") != 1 or not name.endswith("/__init__.py"):
            continue
        for node in ast.parse(text).body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and node.targets[0].id == "__all__"
                and isinstance(node.value, ast.List | ast.Tuple)
            ):
                count += len(node.value.elts)
    return count


def glossary_terms(tree: Tree) -> int:
    """The rows of the glossary."""
    return len(
        re.findall(r"^\| ([a-z ]+) \| [A-Z]", tree.get("docs/glossary.md", ""), re.MULTILINE)
    )


def upward_imports(tree: Tree) -> int:
    """Imports of a package that stands above, by today's order; modules named in texts count."""
    count = 0
    for name, text in source(tree):
        owner = name.split("/")[0].removesuffix(".py")
        if owner not in ORDER or owner == WIRING:
            continue
        above = set(ORDER[: ORDER.index(owner)]) - {owner}
        for module, _ in _modules(name, text):
            count += module[0] in above
    return count


def upward_imports_in_rpc(tree: Tree) -> int:
    """Imports inside `rpc` from the foundation to client, server or copies, or between these."""
    ends = {"client", "server", "replicas"}
    allowed = {"client": {"client"}, "server": {"server"}, "replicas": ends}
    programs = {"__init__.py", "_bundles.py", "_ship.py", "_control.py", "server/__main__.py"}
    count = 0
    for name, text in source(tree):
        path = name.removeprefix("rpc/")
        if path == name or path in programs:
            continue
        parts = path.split("/")
        owner = "replicas" if "replicas" in parts[:-1] else parts[0]
        for module, _ in _modules(name, text):
            if module[0] == "rpc" and len(module) > 1:
                target = "replicas" if "replicas" in module else module[1]
                count += target in ends - allowed.get(owner, RPC_BELOW.get(owner, set[str]()))
    return count


def _modules(name: str, text: str) -> Iterator[tuple[list[str], int]]:
    for module, line in modules_in(text, ("seer", *name.removesuffix(".py").split("/"))):
        yield module.split(".")[1:], line


def collected(tree: Tree) -> list[tuple[str, str]]:
    """The files that pytest collects."""
    return [(n, t) for n, t in tree.items() if n.startswith("tests/") and "/test_" in n]


def private_tests(tree: Tree) -> int:
    """The test files that import a private module or name of Seer."""
    count = 0
    for _, text in collected(tree):
        names = [name for node in ast.walk(ast.parse(text)) for name in _imported(node)]
        count += any(name.startswith("seer") and "._" in name for name in names)
    return count


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def files_that_name(tree: Tree, pattern: str, places: str) -> list[str]:
    """The files in which an example occurs outside comments and docstrings."""
    found: list[str] = []
    for name, text in source(tree):
        if re.match(places or ".", name.split("/")[0]) and re.search(pattern, _code(text)):
            found.append(name)
    return found


def _code(text: str) -> str:
    """A source without comments and docstrings."""
    return ast.unparse(_Undocumented().visit(ast.parse(text))).replace("'", '"')


class _Undocumented(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Expr(ast.Constant(...)) if text else node


FIGURES: dict[str, Callable[[Tree], int]] = {
    "public names": public_names,
    "terms of the glossary": glossary_terms,
    "imports from a package above": upward_imports,
    "imports upward inside `rpc`": upward_imports_in_rpc,
    "test files": lambda tree: len(collected(tree)),
    "test files that import private modules": private_tests,
    "lines of JavaScript": lambda tree: sum(t.count("\n") for _, t in source(tree, ".js")),
}


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose columns after the first are numbers."""
    rule = ["---", *["---:" for _ in head[1:]]]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def tables() -> str:
    """All figures, as Markdown."""
    columns = [f"`{TREES['first']}`", f"`{TREES['before']}`", "now"]
    trees = [read_tree(TREES["first"]), read_tree(TREES["before"]), read_tree(None)]
    sizes = [packages(tree) for tree in trees]
    names = sorted({name for size in sizes for name in size})
    rows = [
        [
            f"`{name}`" if " " not in name else name,
            *("{1:,} / {0}".format(*size[name]) if name in size else "" for size in sizes),
        ]
        for name in names
    ]
    totals = [[sum(pair[i] for pair in size.values()) for i in (1, 0)] for size in sizes]
    rows.append(["**all**", *(f"**{lines:,} / {files}**" for lines, files in totals)])
    figures = [[what, *(f"{count(tree):,}" for tree in trees)] for what, count in FIGURES.items()]
    costs = [
        [what, example, *(str(len(files_that_name(tree, pattern, places))) for tree in trees)]
        for what, example, pattern, places in EXAMPLES
    ]
    return "\n\n".join(
        [
            table(["lines / files of Python", *columns], rows),
            table(["", *columns], figures),
            table(["files that name one", "example", *columns], costs),
        ]
    )


def main() -> None:
    """Print the tables, or write them into the page."""
    made = tables()
    if "--files" in sys.argv and "--write" not in sys.argv:
        tree = read_tree(None)
        for what, _, pattern, places in EXAMPLES:
            made += f"\n\n{what}: " + ", ".join(files_that_name(tree, pattern, places))
    if "--write" in sys.argv:
        text = PAGE.read_text()
        begin, end = "<!-- figures -->\n", "<!-- end -->"
        before, _, rest = text.partition(begin)
        PAGE.write_text(before + begin + "\n" + made + "\n\n" + end + rest.partition(end)[2])
    else:
        sys.stdout.write(made + "\n")


if __name__ == "__main__":
    main()
