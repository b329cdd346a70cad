"""The gate: a caller can reach only functions that are marked with `@expose`.

The names here are for interface files. The rest of the package is internal. Names are loaded on
first use, because this package is imported where start-up time matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .interface._budget import Budget
    from .interface._expose import expose, get_model_path, keep, list_configured_models
    from .values._handles import Handle

_HOMES = {
    "Budget": "interface._budget",
    "Handle": "values._handles",
    "expose": "interface._expose",
    "get_model_path": "interface._expose",
    "keep": "interface._expose",
    "list_configured_models": "interface._expose",
}

__all__ = ["Budget", "Handle", "expose", "get_model_path", "keep", "list_configured_models"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module("." + home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
