"""The web page for recorded runs: a list, a live run, two runs side by side, a file to share."""

import importlib
from typing import TYPE_CHECKING

from seer.errors import MissingExtraError as _MissingExtraError

if TYPE_CHECKING:
    from seer.viewer._export import share
    from seer.viewer._redaction import Redaction
    from seer.viewer._server import Viewer, serve

__all__ = ["Redaction", "Viewer", "serve", "share"]

_MODULES = {
    "Redaction": "_redaction",
    "Viewer": "_server",
    "serve": "_server",
    "share": "_export",
}


def __getattr__(name: str) -> object:
    # Imported on use, because the libraries of the extra `viewer` may not be installed.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        raise _MissingExtraError(
            f"the viewer needs {error.name}; run: pip install 'seer-interp[viewer]'"
        ) from error
    return getattr(module, name)
