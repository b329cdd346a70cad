"""Makes documentation from Python source. It reads the source with `ast` and executes nothing."""

import ast
import inspect
import warnings
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from seer.errors import ConfigError

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def parse_module(field: str, path: str, source: bytes) -> ast.Module:
    """Parse one file.

    Raises:
        ConfigError: The file is not valid Python; the message has the line and the reason.
    """
    with warnings.catch_warnings():
        # Python repeats its warnings about invalid escapes when the user runs the file.
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            return _parsed(source, path)
        except SyntaxError as error:
            where = f"line {error.lineno}: " if error.lineno else ""
            text = f": {error.text.strip()!r}" if error.text else ""
            raise ConfigError(field, path, f"{where}{error.msg}{text}") from error
        except ValueError as error:  # a null byte, which `ast` does not report as a SyntaxError
            raise ConfigError(field, path, f"is not Python source: {error}") from error


def _parsed(source: bytes | str, path: str = "<unknown>") -> ast.Module:
    """Like `ast.parse`, but works while other threads parse.

    Python 3.11 has one recursion counter for the parsers of all threads. It raises `SystemError`
    if two of them run at the same time (gh-106905), although the source is correct.
    """
    for _ in range(9):
        try:
            return ast.parse(source, filename=path)
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
    return ast.parse(source, filename=path)


def document_library(name: str, files: Mapping[str, bytes]) -> str:
    """Markdown for a library: signatures and docstrings of its public functions and classes."""
    sections: list[str] = []
    for path in sorted(files, key=lambda p: (p.count("/"), not p.endswith("__init__.py"), p)):
        module = module_name(path)
        if module is None or any(part.startswith("_") for part in module.split(".")[1:]):
            continue
        tree = parse_module("Library.files", path, files[path])
        body = "\n\n".join(document_module(tree))
        doc = ast.get_docstring(tree)
        if not body and not doc and module != name:
            continue
        text = f"## `{module}`\n"
        text += f"\n{doc}\n" if doc else ""
        text += f"\n```python\n{body}\n```\n" if body else ""
        sections.append(text)
    return "\n".join(sections)


def document_module(tree: ast.Module) -> Iterator[str]:
    """Each public definition of a module, as source with `...` as its body."""
    exported = _exported(tree)
    for node in tree.body:
        if not isinstance(node, FunctionNode | ast.ClassDef):
            continue
        public = node.name in exported if exported is not None else not node.name.startswith("_")
        if public:
            yield _class(node) if isinstance(node, ast.ClassDef) else signature(node)


def signature(node: FunctionNode, *, method: bool = False) -> str:
    """A function as `def name(...) -> T:` with its docstring and `...`."""
    prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    arguments = _without_self(node.args) if method else node.args
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    head = f"{prefix} {node.name}({ast.unparse(arguments)}){returns}:"
    return _with_body(head, ast.get_docstring(node))


def module_name(path: str) -> str | None:
    """The dotted name under which a file of a library is imported; None for other files."""
    pure = PurePosixPath(path)
    if pure.suffix != ".py":
        return None
    parts = pure.parts[:-1] if pure.name == "__init__.py" else pure.with_suffix("").parts
    return ".".join(parts) if parts and all(part.isidentifier() for part in parts) else None


def first_sentence(docstring: str | None) -> str:
    """The first paragraph of a docstring, on one line; empty if there is no docstring."""
    return " ".join(inspect.cleandoc(docstring or "").split("\n\n")[0].split())


def _class(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    head = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
    members: list[str] = []
    for item in node.body:
        if isinstance(item, FunctionNode) and _public_member(item.name):
            decorators = [f"@{ast.unparse(d)}" for d in item.decorator_list]
            plain = "@staticmethod" not in decorators
            shown = [d for d in decorators if d in ("@staticmethod", "@classmethod", "@property")]
            members.append("\n".join([*shown, signature(item, method=plain)]))
        elif (
            isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and not item.target.id.startswith("_")
        ):
            members.append(ast.unparse(item))
    return _with_body(head, ast.get_docstring(node), members)


def _with_body(head: str, docstring: str | None, members: list[str] | None = None) -> str:
    lines: list[str] = []
    if docstring:
        quoted = docstring.replace("\\", "\\\\").replace('"""', r"\"\"\"")
        lines.append(f'"""{quoted}"""' if "\n" not in quoted else f'"""{quoted}\n"""')
    lines.extend(members or ["..."])
    block = "\n".join(lines)
    return head + "\n" + "\n".join("    " + line if line else "" for line in block.split("\n"))


def _public_member(name: str) -> bool:
    return name in ("__init__", "__call__") or not name.startswith("_")


def _without_self(arguments: ast.arguments) -> ast.arguments:
    copy = _parsed(f"def f({ast.unparse(arguments)}): ...").body[0]
    assert isinstance(copy, ast.FunctionDef)
    positional = copy.args.posonlyargs or copy.args.args
    if positional:
        del positional[0]
    return copy.args


def _exported(tree: ast.Module) -> frozenset[str] | None:
    """The names in a literal `__all__`, or None if the module has none."""
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id="__all__")], value=ast.List(elts=elts) | ast.Tuple(elts=elts)
            ):
                return frozenset(
                    e.value
                    for e in elts
                    if isinstance(e, ast.Constant) and isinstance(e.value, str)
                )
            case _:
                pass
    return None
