"""Starts and ends the viewer's server, and checks every request."""

import contextlib
import logging
import os
import secrets
import tempfile
import threading
import webbrowser
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Self

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seer._loopback import HOST, LoopbackServer, has_token, refusal
from seer._redact import register_secrets
from seer._sync import run_sync
from seer._transient import remove_at_end
from seer.console import say
from seer.errors import ConfigError, SeerError
from seer.runs import runs_root
from seer.viewer._api import Api, failure
from seer.viewer._assets import assets
from seer.viewer._json import answer
from seer.viewer._sweeps import runs_of

logger = logging.getLogger(__name__)

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # As no trusted-types policy is allowed, the page can turn no text into markup or code.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Mapping[str, str] = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_MAX_BODY = 256 * 1024


class Viewer:
    """A viewer that serves a folder of runs on loopback: `with Viewer(folder) as viewer: ...`."""

    def __init__(
        self, runs_folder: Path | str | None = None, *, port: int = 0, allow_control: bool = False
    ) -> None:
        """Create it without starting the server.

        Raises:
            ConfigError: The port is out of range.
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
        guarded = _Guard(self._application(), token=self.token)
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
            exception_handlers={SeerError: failure, Exception: _failed},
        )


class _Guard:
    """Checks every request before the application gets it, and adds headers to every response.

    The server listens on loopback. Other users of the machine can connect to it, and so can any web
    site through the user's own browser. A request must therefore name a loopback host, which stops
    DNS rebinding, must not come from another origin, and must carry the token unless it asks for
    one of the page's own files. The token is sent only in an `Authorization` header, which no other
    site can make a browser send. There are no cookies. The headers of every response forbid the
    browser to run foreign code, to frame the page, and to guess content types.
    """

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] != "http":
            return  # no websockets

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        problem = self._refuse(str(scope["path"]), Headers(scope=scope))
        if problem is None:
            await self._app(scope, receive, send_guarded)
            return
        status, message = problem
        response = answer({"error": message}, status=status)
        await response(scope, receive, send_guarded)

    def _refuse(self, path: str, headers: Headers) -> tuple[int, str] | None:
        problem = refusal(headers)
        if problem is not None:
            return problem
        # Other sites may link to the page; only the page itself requests everything else.
        link = path == "/" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in {"same-origin", "none"} and not link:
            return 403, "requests from other sites are not answered"
        size = headers.get("content-length", "0")
        if not size.isdigit() or int(size) > _MAX_BODY or "transfer-encoding" in headers:
            return 413, f"a request needs a Content-Length of at most {_MAX_BODY} bytes"
        public = path == "/" or path.removeprefix("/") in assets()
        if not public and not has_token(headers, self._token):
            return 401, "the token is missing or wrong; use the whole address that Seer printed"
        return None


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
    """Show a folder of runs in a web page, until Ctrl-C.

    The page is served on loopback only. Its address contains a token that is new each time.

    Args:
        runs_folder: The folder that holds run folders; `$SEER_RUNS` or `./outputs/runs` by default.
        port: The port; 0 picks a free one.
        allow_control: Whether the page may stop runs, message agents and change limits.
        open_browser: Whether to open the page at once.
        run_id: The run to show first; by default, the list of all runs.

    Raises:
        ConfigError: The port is in use or out of range.
        MissingExtraError: A library of the extra `viewer` is not installed.
    """
    with Viewer(runs_folder, port=port, allow_control=allow_control) as viewer:
        url = viewer.url if run_id is None else f"{viewer.url}&run={run_id}"
        say(f"Runs in {viewer.runs_folder}:\n  {url}\nCtrl-C ends the viewer.")
        with contextlib.ExitStack() as stack:
            if open_browser:
                file = stack.enter_context(_redirect_file(viewer.runs_folder, url))
                webbrowser.open(file.as_uri())
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()


@contextlib.contextmanager
def _redirect_file(runs: Path, url: str) -> Generator[Path, None, None]:
    """A file that only this user can read, and that redirects to the page.

    Every user of the machine can see a browser's arguments in the list of processes, so the browser
    gets the address of this file.
    """
    try:
        path = _write_redirect(url, runs)
    except OSError:  # a folder that is read-only, or on a full disk
        path = _write_redirect(url, None)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _write_redirect(url: str, folder: Path | None) -> Path:
    number, name = tempfile.mkstemp(prefix="viewer-", suffix=".html", dir=folder)
    path = Path(name)
    # The viewer may be killed, for example when its terminal is closed.
    remove_at_end(path)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(f'<meta http-equiv="refresh" content="0;url={url}">')
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path
