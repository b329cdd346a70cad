"""The web page over recorded runs: all, one of them live, two side by side, one to share."""

from seer.errors import MissingExtraError as _MissingExtraError

try:
    import latex2mathml as _latex2mathml  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import linkify_it as _linkify_it  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import mdit_py_plugins as _plugins  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import nh3 as _nh3  # noqa: F401  # pyright: ignore[reportUnusedImport]
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
