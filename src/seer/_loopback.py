"""A web server on the loopback address, and the checks on its requests.

Other users of the machine can connect to it, and so can every web site through the user's browser.
So a request must name a loopback host, which defeats DNS rebinding. It must not come from another
origin. And it must have a token in its `Authorization` header, which another site cannot make a
browser send.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import socket
from typing import TYPE_CHECKING

from seer.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp

HOST = "127.0.0.1"
HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names of this machine. The port is not checked, because a forwarded port differs."""


class LoopbackServer:
    """An application on a loopback port, from `open` to `close`."""

    def __init__(self, port: int, server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        self.port = port
        self._server = server
        self._serving = serving

    @classmethod
    async def open(cls, app: ASGIApp, port: int) -> LoopbackServer:
        """Serve `app`, which checks each request with `refusal`.

        Args:
            app: The application.
            port: The port to listen on; 0 picks a free port.

        Raises:
            ConfigError: The port is in use.
        """
        import uvicorn

        listener = _listen(port)
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=256,
            timeout_graceful_shutdown=2,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        return cls(int(listener.getsockname()[1]), server, serving)

    async def close(self) -> None:
        """Stop the server. Open connections have two seconds to finish."""
        self._server.should_exit = True
        await self._serving


def refusal(headers: Headers) -> tuple[int, str] | None:
    """The status and message for a request that another site may have caused; else None."""
    hosts = headers.getlist("host")
    if len(hosts) != 1 or _name(hosts[0]) not in HOSTS:
        return 421, f"Host {hosts!r} is not this machine; use the address that Seer printed"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{hosts[0]}":
        return 403, f"requests from {origin!r} are not answered"
    return None


def has_token(headers: Headers, token: str) -> bool:
    """Whether a request carries the token; compared in constant time."""
    given = headers.getlist("authorization")
    kind, _, found = (given[0] if len(given) == 1 else "").partition(" ")
    return kind == "Bearer" and hmac.compare_digest(found.encode(), token.encode())


def _name(host: str) -> str:
    """The host name of a `Host` header, in lower case and without the port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        reason = "is already in use" if taken else f"cannot be listened on: {error.strerror}"
        raise ConfigError("port", port, f"{reason}; use 0 for a free port") from error
    return listener
