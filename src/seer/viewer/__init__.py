"""The web page for recorded runs: the list, one run live, two side by side, one to share."""

from seer.errors import MissingExtraError as _MissingExtraError

try:
    from seer.viewer._export import share
    from seer.viewer._redaction import Redaction
    from seer.viewer._server import Viewer, serve
except ModuleNotFoundError as error:
    raise _MissingExtraError(
        f"the viewer needs {error.name}; run: pip install 'seer-interp[viewer]'"
    ) from error

__all__ = ["Redaction", "Viewer", "serve", "share"]
