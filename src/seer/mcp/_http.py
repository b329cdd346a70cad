"""An MCP server over Streamable HTTP: on loopback, with a token, for several clients at once.

The SDK implements the protocol. This module checks each request before the SDK reads a byte of it,
and ends the sessions of clients that are gone.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seer._loopback import HOST, LoopbackServer, has_token, refusal
from seer._redact import register_secrets
from seer.mcp._closing import ClosableServer
from seer.mcp._lines import LINE_LIMIT
from seer.mcp._sdk import load_server
from seer.tools._tool import ToolSource

PATH = "/mcp"
_MAX_SESSIONS = 256
_GRACE = 30.0
"""Seconds in which a client whose stream broke can reconnect to its session."""


class HttpServer(ClosableServer):
    """Accepts MCP clients until it is closed."""

    def __init__(self, source: ToolSource, token: str) -> None:
        super().__init__()
        register_secrets([token])
        self._source = source
        self._token = token
        self._port: asyncio.Future[int] = self._loop.create_future()
        self._closing = asyncio.Event()
        self._sessions: _Sessions | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, source: ToolSource, *, port: int, token: str) -> HttpServer:
        """Open a server.

        Args:
            source: The tools.
            port: Where to listen on loopback; 0 picks a free port.
            token: The token that every request must carry.

        Raises:
            ConfigError: The port is in use.
        """
        self = cls(source, token)
        self._task = asyncio.create_task(self._serve(port))
        await asyncio.wait([self._task, self._port], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task
        return self

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://{HOST}:{self._port.result()}{PATH}"

    async def _close(self) -> None:
        self._closing.set()
        if self._task is not None:
            await self._task

    async def _serve(self, port: int) -> None:
        http = await LoopbackServer.open(self._answer, port)
        try:
            await asyncio.to_thread(load_server)
            from seer.mcp._server import http_application

            application = http_application(
                self._source, body_limit=LINE_LIMIT, max_sessions=_MAX_SESSIONS
            )
            async with application as answer:
                self._sessions = _Sessions(answer)
                self._port.set_result(http.port)
                await self._closing.wait()
                sessions, self._sessions = self._sessions, None
                await sessions.close()
        finally:
            await http.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the SDK, or refuse it."""
        if scope["type"] != "http":
            return  # no websockets
        problem = self._problem(str(scope["path"]), Headers(scope=scope))
        if problem is None:
            assert self._sessions is not None, "checked with the rest"
            await self._sessions.handle(scope, receive, send)
            return
        status, message = problem
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        await JSONResponse({"error": message}, status, headers)(scope, receive, send)

    def _problem(self, path: str, headers: Headers) -> tuple[int, str] | None:
        problem = refusal(headers)
        if problem is not None:
            return problem
        if path != PATH:
            return 404, f"there is nothing at this path; the server is at {PATH}"
        if not has_token(headers, self._token):
            return 401, "the token is missing or wrong; send it as 'Authorization: Bearer TOKEN'"
        return (503, "the server is shutting down") if self._sessions is None else None


class _Sessions:
    """The clients' sessions. A session ends when its client ends it or disconnects.

    A client that listens keeps a stream open, so the server sees when it disconnects. A client that
    does not listen is invisible between two requests; its session ends after half an hour without a
    request.
    """

    def __init__(self, answer: ASGIApp) -> None:
        self._answer = answer
        self._open: Counter[str] = Counter()
        """How many requests of each session are being answered."""
        self._listened: set[str] = set()
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        session = Headers(scope=scope).get("mcp-session-id", "")
        self._begin_request(session, listens=bool(session) and scope["method"] == "GET")
        try:
            await self._answer(scope, receive, send)
        finally:
            self._end_request(session, ended=scope["method"] == "DELETE")

    def _begin_request(self, session: str, *, listens: bool) -> None:
        self._open[session] += 1
        if listens:
            self._listened.add(session)
        if session in self._leaving:
            self._leaving.pop(session).cancel()

    def _end_request(self, session: str, *, ended: bool) -> None:
        self._open[session] -= 1
        if self._open[session]:
            return
        del self._open[session]
        if ended:
            self._listened.discard(session)
        elif session in self._listened:
            later = asyncio.get_running_loop().call_later(_GRACE, self._end_after_grace, session)
            self._leaving[session] = later

    def _end_after_grace(self, session: str) -> None:
        del self._leaving[session]
        task = asyncio.create_task(self._end(session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, session: str) -> None:
        """End a session as the client's own DELETE would."""

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            """Drop the answer, because no client reads it."""

        scope: Scope = {
            "type": "http",
            "method": "DELETE",
            "path": PATH,
            "query_string": b"",
            "headers": [(b"mcp-session-id", session.encode())],
        }
        await self.handle(scope, receive, send)

    async def close(self) -> None:
        """End the sessions at once."""
        for timer in self._leaving.values():
            timer.cancel()
        await asyncio.gather(*self._ending)
