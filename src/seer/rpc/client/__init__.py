"""The client of the gate: what a generated library calls through.

It runs in agents' jails, where nothing else of Seer is, under any name: only relative imports and
the standard library. numpy is used where arrays come and it is there. Names are loaded on first
use, because the server shares a module of this package and has no use for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._deadline import deadline
    from ._gate import Gate, connect
    from ._handles import Handle

__all__ = ["Gate", "Handle", "connect", "deadline"]

_HOMES = {
    "Gate": "_gate",
    "Handle": "_handles",
    "connect": "_gate",
    "deadline": "_deadline",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module("." + home, __name__), name)
    globals()[name] = value
    return value
