"""The files that are sent to machines: the server, the client, and an interface.

Both bundles are plain copies, laid out as packages. The server's is a part of `seer` under its own
name. The client's mirrors the same tree under the name `_seer_gate`, with `__init__` files that
import nothing, so that an agent's jail contains no module named `seer`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from seer.errors import ServeError

from .values._codec import MODULES

_RPC = Path(__file__).parent
_SEER = _RPC.parent
CLIENT_PACKAGE = "_seer_gate"

# Only the controller needs these.
_NOT_SERVED = ("_control.py", "_bundles.py", "library/")


def server_bundle() -> Mapping[str, Path]:
    """The files that `python -m seer.rpc.server` needs, by their path in the bundle."""
    found = {
        "seer/__init__.py": _SEER / "__init__.py",
        "seer/errors.py": _SEER / "errors.py",
    }
    for path in sorted(_RPC.rglob("*.py")):
        name = path.relative_to(_RPC).as_posix()
        if not name.startswith(_NOT_SERVED):
            found[f"seer/rpc/{name}"] = path
    return found


def client_bundle() -> Mapping[str, Path]:
    """The files that a generated library needs, by their path in the bundle."""
    client = _RPC / "client"
    found = {
        f"{CLIENT_PACKAGE}/__init__.py": client / "_package.py",
        f"{CLIENT_PACKAGE}/errors.py": _SEER / "errors.py",
        f"{CLIENT_PACKAGE}/rpc/__init__.py": client / "_empty.py",
    }
    for folder in ("values", "wire"):
        found[f"{CLIENT_PACKAGE}/rpc/{folder}/__init__.py"] = client / "_empty.py"
    for module in MODULES:
        found[f"{CLIENT_PACKAGE}/rpc/values/{module}.py"] = _RPC / "values" / f"{module}.py"
    for module in ("_chunks", "_descriptors", "_polling", "_protocol"):
        found[f"{CLIENT_PACKAGE}/rpc/wire/{module}.py"] = _RPC / "wire" / f"{module}.py"
    for path in sorted(client.glob("*.py")):
        if path.name not in ("_empty.py", "_package.py"):
            found[f"{CLIENT_PACKAGE}/rpc/client/{path.name}"] = path
    return found


def interface_files(file: Path) -> dict[str, bytes]:
    """An interface file and the modules beside it that it imports relatively, by file name.

    No other file of the folder is sent. The server refuses a file that is not Python.

    Raises:
        ServeError: A relative import does not lead to a file beside the interface.
    """
    found: dict[str, bytes] = {}
    wanted: list[tuple[str, Path, int]] = [(file.name, file, 0)]
    while wanted:
        name, by, line = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = (file.parent / name).read_bytes()
        except OSError as error:
            if name == file.name:
                raise ServeError(
                    f"the interface file cannot be read: {error.strerror}", file=str(file)
                ) from None
            reason = f"there is no {name!r} beside it to import"
            raise ServeError(reason, file=str(by), line=line) from None
        path = file.parent / name
        wanted += [(f"{m}.py", path, at) for m, at in _relative_imports(path, found[name])]
    return found


def _relative_imports(file: Path, source: bytes) -> Iterator[tuple[str, int]]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        if node.level > 1 or "." in (node.module or ""):
            raise ServeError(
                f"`from {'.' * node.level}{node.module or ''} import ...`: only modules beside the "
                "interface file are sent with it, not other folders",
                file=str(file),
                line=node.lineno,
            )
        for name in [node.module] if node.module else [alias.name for alias in node.names]:
            yield name, node.lineno
