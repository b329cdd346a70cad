"""The web page for recorded runs: the list, one run live, two side by side, one to share."""

from seer.errors import MissingExtraError as _MissingExtraError

try:
    import starlette as _starlette  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import uvicorn as _uvicorn  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise _MissingExtraError(
        f"the viewer needs {error.name}; run: pip install 'seer-interp[viewer]'"
    ) from error

from seer.viewer._export import share
from seer.viewer._redaction import Redaction
from seer.viewer._server import Viewer, serve

__all__ = ["Redaction", "Viewer", "serve", "share"]
