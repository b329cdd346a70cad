"""A small HTTP server for the supervisor: the control socket, and callers while nobody serves them.

The peers of the control socket are trusted; those of the callers' sockets are not, and get one
answer each and a closed connection.
"""

from __future__ import annotations

import json
import os
import select
import socket

from seer.rpc.wire._http import Request, WireError, parse_request
from seer.rpc.wire._protocol import MAX_HEAD

from ._failures import error_text
from ._replies import plain_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Handler = Callable[["HttpConnection", Request, bytes], None]

MAX_CONTROL_BODY = 16 << 20


class Poller:
    """An epoll with callbacks."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], object]] = {}

    def watch(self, fd: int, mask: int, handler: Callable[[int], object]) -> None:
        """Call `handler(events)` for events of `fd`."""
        if fd in self._handlers:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Forget `fd`."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def step(self, timeout: float) -> None:
        """Wait for events for at most `timeout` seconds and handle them."""
        for fd, events in self._epoll.poll(timeout):
            handler = self._handlers.get(fd)
            if handler is None:
                continue
            try:
                handler(events)
            except Exception:
                # The supervisor outlives its own faults: it is all that is left after the
                # interface's.
                import traceback

                os.write(2, traceback.format_exc().encode())

    def close(self) -> None:
        """Close it, in a child that does not need it."""
        self._epoll.close()


class HttpConnection:
    """One connection: reads a request, has it handled, sends the answer."""

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
        connected.setblocking(False)
        self.socket = connected
        self.prefix = prefix
        self.closed = False
        self._poller = poller
        self._handler = handler
        self._once = once
        self._on_close = on_close
        self._in = b""
        self._out = b""
        self._request: Request | None = None
        self._finishing = False
        poller.watch(connected.fileno(), select.EPOLLIN, self._on_events)

    def _on_events(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if not self.closed and events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            self._read()

    def _read(self) -> None:
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if self._finishing:
            return
        self._in += data
        try:
            self._advance()
        except WireError as error:
            self._finishing = True
            self.respond_text(error.status, error_text("ProtocolError", str(error)))

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
            # The answer does not depend on the body, which may be large: do not wait for it.
            self._finishing = True
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
        close = self._finishing or self._once
        self._finishing = close
        self._out += plain_message(status, self.prefix, text, close=close)
        self._flush()

    def _flush(self) -> None:
        if self.closed:
            return
        try:
            while self._out:
                sent = self.socket.send(self._out)
                self._out = self._out[sent:]
        except BlockingIOError:
            mask = select.EPOLLIN | select.EPOLLOUT
            self._poller.watch(self.socket.fileno(), mask, self._on_events)
            return
        except OSError:
            self.close()
            return
        if self._finishing:
            self.close()
        else:
            self._poller.watch(self.socket.fileno(), select.EPOLLIN, self._on_events)

    def close(self) -> None:
        """Close at once."""
        if self.closed:
            return
        self.closed = True
        self._poller.unwatch(self.socket.fileno())
        self.socket.close()
        self._on_close(self)
