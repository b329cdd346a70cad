"""What travels: the files of the server's bundle and of the client's.

Both are plain copies, laid out as packages. The server's is a part of `seer` under its own name.
The client's mirrors the same tree under the name `_seer_gate`, with doors that import nothing, so
that no module named `seer` is ever in an agent's jail.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ._values import MODULES

_RPC = Path(__file__).parent
_SEER = _RPC.parent
CLIENT_PACKAGE = "_seer_gate"

# Needed by the controller only.
_NOT_SERVED = frozenset(
    {"_control.py", "_docs.py", "_mcp_schema.py", "_ship.py", "_stub.py", "_launch.py"}
)


def server_bundle() -> Mapping[str, Path]:
    """The files that `python -m seer.rpc.server` needs, by their path in the bundle."""
    found = {
        "seer/__init__.py": _SEER / "__init__.py",
        "seer/errors.py": _SEER / "errors.py",
    }
    for path in sorted(_RPC.rglob("*.py")):
        name = path.relative_to(_RPC).as_posix()
        if name not in _NOT_SERVED:
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
    for module in (*MODULES, "_restore"):
        found[f"{CLIENT_PACKAGE}/rpc/{module}.py"] = _RPC / f"{module}.py"
    for path in sorted(client.glob("*.py")):
        if path.name not in ("_empty.py", "_package.py"):
            found[f"{CLIENT_PACKAGE}/rpc/client/{path.name}"] = path
    return found
