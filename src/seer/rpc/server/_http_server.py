"""The supervisor's HTTP server: for the control socket, and for callers while no interface runs.

Peers of the control socket are trusted. Peers of the callers' sockets are not: a connection gets
one answer and is closed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from seer.rpc.wire._http import Request, WireError, parse_request
from seer.rpc.wire._protocol import MAX_HEAD

from ._failures import error_text
from ._replies import plain_message
from ._socket import NonBlockingSocket

if TYPE_CHECKING:
    import socket

    from ._poller import Poller

    Handler = Callable[["HttpConnection", Request, bytes], None]

MAX_CONTROL_BODY = 16 << 20


class HttpConnection(NonBlockingSocket):
    """One connection: it reads a request, passes it to the handler and sends the answer.

    Args:
        connected: The socket.
        poller: Reports its events.
        handler: Answers a request.
        prefix: The lines that follow the status line of every answer.
        once: Whether the connection is closed after one answer, without waiting for the body.
        on_close: Called when it is closed.
    """

    def __init__(
        self,
        connected: socket.socket,
        poller: Poller,
        handler: Handler,
        *,
        prefix: bytes,
        once: bool,
        on_close: Callable[[HttpConnection], object],
    ) -> None:
        self.prefix = prefix
        self._handler = handler
        self._once = once
        self._on_close = on_close
        self._in = b""
        self._request: Request | None = None
        super().__init__(connected, poller)

    @property
    def partial(self) -> bool:
        """Whether a part of a request has been read, and the rest is awaited."""
        return not self.closing and (self._request is not None or bool(self._in))

    def on_readable(self) -> int:
        """Read what came, and return how many bytes there were."""
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.close()
            return 0
        if self.closing:
            return len(data)
        self._in += data
        try:
            self._advance()
        except WireError as error:
            self.closing = True
            self.respond_text(error.status, error_text("ProtocolError", str(error)))
        return len(data)

    def _advance(self) -> None:
        if self._request is None:
            end = self._in.find(b"\r\n\r\n", 0, MAX_HEAD)
            if end < 0:
                if len(self._in) >= MAX_HEAD:
                    raise WireError("the head is too long", 431)
                return
            most = 1 << 40 if self._once else MAX_CONTROL_BODY
            self._request = parse_request(self._in[:end], max_body=most)
            self._in = self._in[end + 4 :]
        request = self._request
        if self._once:
            # The answer does not depend on the body, which may be large, so it is not awaited.
            self.closing = True
            self._handler(self, request, b"")
        elif len(self._in) >= request.length:
            body, self._in = self._in[: request.length], self._in[request.length :]
            self._request = None
            self._handler(self, request, body)

    def respond(self, result: object) -> None:
        """Answer with a JSON value."""
        self.respond_text(200, json.dumps({"result": result}).encode())

    def respond_text(self, status: int, text: bytes) -> None:
        """Answer with JSON text."""
        close = self.closing or self._once
        self.send(plain_message(status, self.prefix, text, close=close))
        if close:
            self.finish()

    def on_closed(self) -> None:
        """Tell the owner."""
        self._on_close(self)
