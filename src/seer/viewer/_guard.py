"""Checks every request before it reaches the viewer, and adds security headers to every response.

The server listens on loopback. Other users of the machine can connect to it, and so can any web
site through the user's own browser. A request must therefore name a loopback host, which stops DNS
rebinding, must not come from another origin, and must carry the token unless it asks for one of the
page's own files. The token travels only in an `Authorization` header, which no other site can make
a browser send. There are no cookies. Every response forbids the browser to run, frame or guess the
type of anything that is not the viewer's own.
"""

from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seer._loopback import has_token, refusal
from seer.viewer._assets import assets
from seer.viewer._json import answer

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # With no policy allowed, no text can become markup or code in the page at all.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
MAX_BODY = 256 * 1024


class Guard:
    """The outermost layer of the application."""

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
                for name, value in HEADERS.items():
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
        if not size.isdigit() or int(size) > MAX_BODY or "transfer-encoding" in headers:
            return 413, f"a request has at most {MAX_BODY} bytes, and says how many"
        public = path == "/" or path.removeprefix("/") in assets()
        if not public and not has_token(headers, self._token):
            return 401, "the token is missing or wrong; use the whole address that Seer printed"
        return None
