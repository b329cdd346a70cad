"""Starts and ends the viewer's server."""

import contextlib
import logging
import os
import secrets
import tempfile
import threading
import webbrowser
from collections.abc import Generator
from pathlib import Path
from typing import Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from seer._loopback import HOST, LoopbackServer
from seer._redact import register_secrets
from seer._sync import run_sync
from seer._transient import remove_at_end
from seer.console import say
from seer.errors import ConfigError
from seer.runs import runs_root
from seer.viewer._api import Api
from seer.viewer._assets import assets
from seer.viewer._guard import Guard
from seer.viewer._json import answer
from seer.viewer._sweeps import runs_of

logger = logging.getLogger(__name__)


class Viewer:
    """A viewer that serves a folder of runs on loopback: `with Viewer(folder) as viewer: ...`."""

    def __init__(
        self, runs_folder: Path | str | None = None, *, port: int = 0, allow_control: bool = False
    ) -> None:
        """Prepare, without starting.

        Raises:
            ConfigError: The port cannot be one.
        """
        if not 0 <= port < 65536:
            raise ConfigError("port", port, "must be between 0 and 65535; 0 picks a free one")
        self.runs_folder = runs_of(runs_root(runs_folder))
        self.port = port
        self.token = secrets.token_urlsafe(32)
        register_secrets([self.token])
        self._allow_control = allow_control
        self._closing = False
        self._server: LoopbackServer | None = None

    @property
    def url(self) -> str:
        """The page's address, with the token in the fragment, which browsers do not send."""
        return f"http://{HOST}:{self.port}/#token={self.token}"

    def __enter__(self) -> Self:
        run_sync(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        run_sync(self._close())

    async def _open(self) -> None:
        self._closing = False
        guarded = Guard(self._application(), token=self.token)
        self._server = await LoopbackServer.open(guarded, self.port)
        self.port = self._server.port

    async def _close(self) -> None:
        self._closing = True  # live streams check it
        if self._server is not None:
            await self._server.close()

    def _application(self) -> Starlette:
        api = Api(
            self.runs_folder, allow_control=self._allow_control, closing=lambda: self._closing
        )
        return Starlette(
            routes=[*api.routes(), Route("/{path:path}", _asset, methods=["GET"])],
            exception_handlers={Exception: _failed},
        )


async def _failed(request: Request, error: Exception) -> Response:
    """Answer an internal error. Its message can contain paths, so it stays in the log."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer({"error": "the viewer failed; its log says why"}, status=500)


async def _asset(request: Request) -> Response:
    found = assets().get(str(request.path_params["path"]) or "index.html")
    if found is None:
        return answer({"error": "there is no such page"}, status=404)
    return Response(found[0], media_type=found[1])


def serve(
    runs_folder: Path | str | None = None,
    *,
    port: int = 0,
    allow_control: bool = False,
    open_browser: bool = True,
    run_id: str | None = None,
) -> None:
    """Show a folder of runs in a web page, until interrupted (Ctrl-C).

    The page is on loopback only, and its address has a token that is new each time.

    Args:
        runs_folder: The folder that holds run folders; `$SEER_RUNS` or `./outputs/runs` by default.
        port: The port; 0 picks a free one.
        allow_control: Whether the page may stop runs, speak to agents and raise limits.
        open_browser: Whether to open the page at once.
        run_id: The run to show first; the list of all by default.

    Raises:
        ConfigError: The port is in use or cannot be one.
        MissingExtraError: A library of the extra `viewer` is not installed.
    """
    with Viewer(runs_folder, port=port, allow_control=allow_control) as viewer:
        url = viewer.url if run_id is None else f"{viewer.url}&run={run_id}"
        say(f"Runs in {viewer.runs_folder}:\n  {url}\nCtrl-C ends the viewer.")
        with contextlib.ExitStack() as stack:
            if open_browser:
                webbrowser.open(stack.enter_context(_doorstep(viewer.runs_folder, url)).as_uri())
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()


@contextlib.contextmanager
def _doorstep(runs: Path, url: str) -> Generator[Path, None, None]:
    """A file that only this user can read, and that redirects to the page.

    Every user of the machine can see a browser's arguments in the list of processes, so the browser
    gets the address of this file.
    """
    try:
        path = _write_doorstep(url, runs)
    except OSError:  # a folder that is read-only, or on a full disk
        path = _write_doorstep(url, None)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _write_doorstep(url: str, folder: Path | None) -> Path:
    number, name = tempfile.mkstemp(prefix="viewer-", suffix=".html", dir=folder)
    path = Path(name)
    # Closing the terminal's window ends the viewer.
    remove_at_end(path)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(f'<meta http-equiv="refresh" content="0;url={url}">')
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path
