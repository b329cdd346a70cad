"""Bridges from a client that speaks only plain HTTP to a server with a token, or over stdio."""

import json
import socket
import socketserver
import threading
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from .raw_client import RawClient


@contextmanager
def with_token(url: str, token: str) -> Generator[str]:
    """A loopback address that adds the token to each request and passes it on to `url`."""
    there = urlsplit(url)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            """Pass on one request, and its whole answer."""
            head = b""
            while b"\r\n\r\n" not in head and (data := self.request.recv(65536)):
                head += data
            first, _, rest = head.partition(b"\r\n")
            fields, end, body = rest.partition(b"\r\n\r\n")
            kept = [
                line
                for line in fields.split(b"\r\n")
                if not line.lower().startswith(b"connection:")
            ]
            kept += [b"Connection: close", f"Authorization: Bearer {token}".encode()]
            with socket.create_connection((there.hostname, there.port)) as onward:
                onward.sendall(b"\r\n".join([first, *kept]) + end + body)
                back = threading.Thread(target=_copy, args=(onward, self.request), daemon=True)
                back.start()
                _copy(self.request, onward)
                back.join()

    with _serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}{there.path}"


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def over_stdio(entry: Mapping[str, Any]) -> Generator[str]:
    """A loopback address that starts a server for each session and talks to it over stdio."""
    sessions: dict[str, tuple[RawClient, threading.Lock]] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            """There are no streams except those of requests."""
            self._answer(405)

        def do_DELETE(self) -> None:
            """End a session."""
            client, _ = sessions.pop(self.headers["mcp-session-id"])
            client.close()
            self._answer(200)

        def do_POST(self) -> None:
            """Send a message to the server, and return all its lines up to its answer."""
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            session = self.headers.get("mcp-session-id")
            if session is None:
                session = uuid.uuid4().hex
                sessions[session] = RawClient(entry), threading.Lock()
            client, lock = sessions[session]
            with lock:
                client.send(message)
                if "id" not in message or "method" not in message:
                    self._answer(202)
                    return
                said = [client.next()]
                while said[-1].get("id") != message["id"]:
                    said.append(client.next())
            events = "".join(f"event: message\ndata: {json.dumps(one)}\n\n" for one in said)
            self._answer(200, events.encode(), session)

        def _answer(self, status: int, body: bytes = b"", session: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if body:
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Mcp-Session-Id", session)
            self.end_headers()
            self.wfile.write(body)

    try:
        with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
            yield f"http://127.0.0.1:{port}/mcp"
    finally:
        for client, _ in sessions.values():
            client.close()


@contextmanager
def _serving(server: socketserver.ThreadingTCPServer | ThreadingHTTPServer) -> Generator[int]:
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
