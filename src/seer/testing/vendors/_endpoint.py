"""The script and the HTTP server of a scripted endpoint.

One script works for all vendors. It is a list of `Reply` and `Fault`, or of functions that take the
request and return one of them. The vendors' modules turn them into each vendor's wire format.
"""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self, TypeAlias


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """A tool call that the scripted model makes."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer of the scripted model."""

    text: str | None = None
    thinking: str | None = None
    tools: tuple[ToolUse, ...] = ()
    input_tokens: int = 10
    output_tokens: int = 5
    cached_tokens: int = 0
    """The number of input tokens that came from the vendor's cache."""
    refusal: str | None = None
    """The model's refusal. It is sent as text if the vendor has no field for refusals."""
    finish: str | None = None
    """The vendor's stop reason; by default the usual one. If it is empty, the stream ends without a
    reason."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A failure instead of an answer."""

    kind: Literal["status", "cut", "malformed", "hang", "broken"]
    """`cut`: the connection ends in the middle of the answer. `hang`: no answer until the endpoint
    closes.
    `broken`: the vendor reports the error within the stream, after `reply`."""
    status: int = 500
    message: str = "scripted failure"
    code: str | None = None
    """The vendor's name for the error; by default the usual one for the status."""
    reply: Reply = field(default_factory=Reply)
    retry_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request that an endpoint got."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


Answer: TypeAlias = Reply | Fault
ScriptItem: TypeAlias = Answer | Callable[[Request], Answer]


class VendorEndpoint(ABC):
    """A vendor's endpoint on loopback; use it with `with`.

    Attributes:
        requests: The requests to the model, in order.
        others: Other requests, such as for a list of models.
    """

    def __init__(self, script: Sequence[ScriptItem]) -> None:
        self._script = list(script)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.requests: list[Request] = []
        self.others: list[Request] = []
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The value for `base_url`."""
        assert self._server is not None, "the endpoint is not started; use it with `with`"
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.prefix}"

    prefix = ""
    """The part of the path that belongs to the base URL."""

    @property
    def left(self) -> int:
        """The number of answers of the script that were not used."""
        return len(self._script)

    def __enter__(self) -> Self:
        endpoint = self

        class Handler(_Handler):
            vendor = endpoint

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._server is not None and self._thread is not None
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_ended(self) -> None:
        """Block until the endpoint is closed. The fault `hang` uses this."""
        self._ended.wait()

    def answer(self, request: Request) -> Answer:
        """The next answer of the script."""
        with self._lock:
            self.requests.append(request)
            if not self._script:
                return Fault(kind="status", status=400, message="the script has no more answers")
            item = self._script.pop(0)
        return item(request) if callable(item) else item

    @abstractmethod
    def asks_model(self, request: Request) -> bool:
        """Whether the script answers this request."""

    @abstractmethod
    def render(self, request: Request, reply: Reply) -> tuple[str, Iterator[bytes]]:
        """The content type and the pieces of a successful answer."""

    @abstractmethod
    def render_error(self, fault: Fault) -> Any:
        """The JSON body of an error."""

    def render_break(self, fault: Fault) -> bytes:
        """An error within a stream."""
        return f"data: {json.dumps(self.render_error(fault))}\n\n".encode()

    def other(self, request: Request) -> Any:
        """The JSON answer to a request that the script does not answer."""
        return {}


class _Handler(BaseHTTPRequestHandler):
    vendor: VendorEndpoint
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, to keep the output of tests clean."""

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._send(200, "application/json", b"")

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        data = self.rfile.read(length)
        request = Request(
            method=self.command,
            path=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            body=json.loads(data) if data else None,
        )
        if not self.vendor.asks_model(request):
            self.vendor.others.append(request)
            self._send(200, "application/json", json.dumps(self.vendor.other(request)).encode())
            return
        answer = self.vendor.answer(request)
        if isinstance(answer, Reply):
            kind, pieces = self.vendor.render(request, answer)
            self._send(200, kind, b"".join(pieces))
        else:
            self._fail(request, answer)

    def _fail(self, request: Request, fault: Fault) -> None:
        if fault.kind == "status":
            body = json.dumps(self.vendor.render_error(fault)).encode()
            self._send(fault.status, "application/json", body, retry_after=fault.retry_after)
        elif fault.kind == "malformed":
            self._send(200, "application/json", b'{"this is": "no answer", ')
        elif fault.kind == "hang":
            self.vendor.wait_ended()
            self.close_connection = True
        elif fault.kind == "broken":
            kind, pieces = self.vendor.render(request, replace(fault.reply, finish=""))
            self._send(200, kind, b"".join(pieces) + self.vendor.render_break(fault))
        else:
            kind, pieces = self.vendor.render(request, Reply(text="this will not be seen whole"))
            data = b"".join(pieces)
            self._head(200, kind, len(data))
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.close_connection = True

    def _head(self, status: int, kind: str, length: int, retry_after: float | None = None) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(length))
        if retry_after is not None:
            self.send_header("retry-after", f"{retry_after:g}")
        self.end_headers()

    def _send(
        self, status: int, kind: str, body: bytes, *, retry_after: float | None = None
    ) -> None:
        try:
            self._head(status, kind, len(body), retry_after)
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client went away; tests end runs in the middle
