"""The client of the gate, which generated libraries use.

It runs in agents' jails, without the rest of Seer and under another package name. So it has only
relative imports and needs only the standard library. It uses numpy for arrays if numpy is
installed. Names are loaded on first use, because the front needs only one module of this package.
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
