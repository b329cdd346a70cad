"""The server's side of the wire: it parses request heads and writes response heads.

These are pure functions over bytes, for the interface process and for the supervisor. The peer may
be hostile, so everything that is not exactly as `docs/wire.md` says raises `WireError`. Bodies and
values are not read here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ._protocol import (
    FRAMES_TYPE,
    JSON_TYPE,
    MAX_DESCRIPTORS,
    VERSION,
    Piece,
    WireError,
    parse_headers,
    parse_number,
    parse_pieces,
)

REASONS = {
    100: b"Continue",
    102: b"Processing",
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    409: b"Conflict",
    411: b"Length Required",
    413: b"Content Too Large",
    422: b"Unprocessable Content",
    426: b"Upgrade Required",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}

_ID = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-"
_PATH = _ID + b"/"
_rest_of_head = re.compile(rb"([0-9A-Za-z_.-]{1,64})\r\ncontent-length: ([0-9]{1,9})\r\n\r\n").match
"""What may follow the known beginning of a head: the call's id and the body's length."""
_KNOWN = frozenset(
    {
        b"seer-gate",
        b"seer-epoch",
        b"seer-call",
        b"seer-tool-call",
        b"seer-deadline",
        b"seer-linger",
        b"seer-release",
        b"seer-free",
        b"seer-json",
        b"seer-buffers",
        b"seer-memfds",
        b"seer-accept",
    }
)


@dataclass(slots=True, eq=False)
class Request:
    """The checked head of a request.

    Attributes:
        method: `GET` or `POST`.
        path: The target, which has only letters, digits and `_.-/`.
        length: Bytes of the body.
        call: The caller's id for the call; empty if it gave none.
        tool_call: The id of the agent's tool call that it belongs to, as the caller says.
        epoch: The epoch that the caller knows; empty if it knows none.
        deadline: Seconds that the caller waits, or None.
        linger: Seconds that a call continues after its connection was lost.
        release: Slots of the pool that the caller no longer uses.
        free: Handles that the caller no longer uses.
        json_size: Bytes of the body's JSON text; inline buffers follow.
        pieces: The places of the buffers; None for plain JSON.
        memfds: How many descriptors come with the body.
        frames: Whether the caller can read buffers in the answer.
        shared: Whether the caller can receive descriptors.
        expects: Whether the caller waits for `100 Continue` before it sends the body.
        close: Whether the connection is to be closed after the answer.
        unusual: Whether it has one of release, free and close.
    """

    method: str
    path: str
    length: int = 0
    call: str = ""
    tool_call: str = ""
    epoch: str = ""
    deadline: float | None = None
    linger: float = 0.0
    release: list[int] | None = None
    free: list[str] | None = None
    json_size: int = 0
    pieces: list[Piece] | None = None
    memfds: int = 0
    frames: bool = False
    shared: bool = False
    expects: bool = False
    close: bool = False
    unusual: bool = False


def parse_request(head: bytes, *, max_body: int) -> Request:
    """Parse a request's head, without the empty line that ends it.

    Raises:
        WireError: It is malformed, of another version, or announces more than `max_body` bytes.
    """
    lines = head.split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3:
        raise WireError(f"malformed request line {lines[0][:80]!r}")
    method, target, version = parts
    if version != b"HTTP/1.1":
        raise WireError(f"the gate speaks HTTP/1.1, not {version[:20]!r}", 505)
    if method not in (b"GET", b"POST"):
        raise WireError(f"method {method[:20]!r} is not one of GET, POST", 405)
    if target[:1] != b"/" or target.translate(None, _PATH):
        raise WireError(f"malformed target {target[:80]!r}")
    del lines[0]
    headers = parse_headers(lines)
    request = Request(method.decode(), target.decode())
    get = headers.get
    spoken = get(b"seer-gate")
    if spoken is not None and spoken != b"1":
        raise WireError(
            f"the client speaks version {spoken[:20].decode('ascii', 'replace')!r} of the gate's"
            f" protocol, but this gate speaks {VERSION}: create the session again, so that both"
            " match",
            426,
        )
    _parse_body(request, headers, max_body)
    for name in headers:
        if name[:5] == b"seer-" and name not in _KNOWN:
            raise WireError(f"unknown header {name[:80]!r}")
    value = get(b"seer-call")
    if value is not None:
        request.call = _identifier(value, "seer-call")
    value = get(b"seer-tool-call")
    if value is not None:
        request.tool_call = _identifier(value, "seer-tool-call")
    value = get(b"seer-epoch")
    if value is not None:
        request.epoch = _identifier(value, "seer-epoch")
    value = get(b"seer-deadline")
    if value is not None:
        request.deadline = _seconds(value, "seer-deadline")
    value = get(b"seer-linger")
    if value is not None:
        request.linger = min(_seconds(value, "seer-linger"), 3600.0)
    value = get(b"seer-release")
    if value is not None:
        request.release = [parse_number(n, "a released slot") for n in value.split(b",")]
    value = get(b"seer-free")
    if value is not None:
        request.free = [_identifier(n, "seer-free") for n in value.split(b",")]
    value = get(b"seer-accept")
    if value is not None:
        if value not in (b"frames", b"shared"):
            raise WireError(f"seer-accept is {value[:40]!r}, not frames or shared")
        request.frames = True
        request.shared = value == b"shared"
    value = get(b"connection")
    if value is not None and value.lower() == b"close":
        request.close = True
    request.unusual = request.close or request.release is not None or request.free is not None
    return request


class HeadCache:
    """Remembers the last head of a connection, because a client's heads differ only in two values.

    If a head begins with the same bytes as the last one, up to the call's id, and ends with the id
    and a content-length, then only these two differ and the rest need not be parsed.

    Attributes:
        request: The request that `again` found; valid until the next call of `again`.
    """

    __slots__ = ("_max_body", "_prefix", "request")

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._prefix: bytes | tuple[()] = ()  # `startswith(())` is always False
        self.request = Request("", "")

    def again(self, data: bytes) -> bytes | None:
        """The body, if `data` is one complete request with a head like the last one; else None."""
        prefix = self._prefix
        if not data.startswith(prefix):
            return None
        found = _rest_of_head(data, len(prefix))
        if found is None:
            return None
        call, length = found.groups()
        body = data[found.end() :]
        size = len(body)
        if int(length) != size or size > self._max_body:
            return None
        request = self.request
        request.call = call.decode()
        request.length = request.json_size = size
        return body

    def parse(self, head: bytes) -> Request:
        """Like `parse_request`, and remembers the head.

        Raises:
            WireError: As for `parse_request`.
        """
        request = parse_request(head, max_body=self._max_body)
        start = head.rfind(b"\r\nseer-call: ")
        if (
            start > 0
            and request.method == "POST"
            and request.pieces is None
            and head.count(b"\r\n", start) == 2
            and b"\r\ncontent-length: " in head[start:]
            and not (request.release or request.free or request.expects)
            and request.deadline is None
        ):
            self._prefix = head[: start + len(b"\r\nseer-call: ")]
            self.request = request
        return request


def _parse_body(request: Request, headers: dict[bytes, bytes], max_body: int) -> None:
    get = headers.get
    if b"transfer-encoding" in headers:
        raise WireError("requests must have a content-length, not a transfer-encoding", 411)
    value = get(b"content-length")
    if value is not None:
        request.length = parse_number(value, "content-length")
        if request.length > max_body:
            raise WireError(
                f"the request has {request.length} bytes; at most {max_body} are accepted", 413
            )
    elif request.method == "POST":
        raise WireError("a POST must have a content-length", 411)
    if request.method == "GET" and request.length:
        raise WireError("a GET must have no body")
    expect = get(b"expect")
    if expect is not None:
        if expect.lower() != b"100-continue":
            raise WireError(f"expect is {expect[:40]!r}, not 100-continue")
        request.expects = True
    request.json_size = request.length
    if get(b"content-type") != FRAMES_TYPE:
        if b"seer-buffers" in headers or b"seer-memfds" in headers or b"seer-json" in headers:
            raise WireError(f"buffers need the content-type {FRAMES_TYPE.decode()}")
        return
    request.json_size = parse_number(get(b"seer-json", b""), "seer-json")
    memfds = get(b"seer-memfds")
    if memfds is not None:
        request.memfds = parse_number(memfds, "seer-memfds")
        if not 1 <= request.memfds <= MAX_DESCRIPTORS:
            raise WireError(f"seer-memfds is {request.memfds}, not 1 to {MAX_DESCRIPTORS}")
    buffers = get(b"seer-buffers")
    if buffers is None:
        raise WireError("frames need the header seer-buffers")
    request.pieces = parse_pieces(buffers, json_size=request.json_size, body_size=request.length)
    for piece in request.pieces:
        if piece.place == "s" or (piece.place == "m" and piece.index >= request.memfds):
            raise WireError("a buffer refers to memory that does not come with the request")


def _identifier(value: bytes, what: str) -> str:
    if not 1 <= len(value) <= 64 or value.translate(None, _ID):
        raise WireError(f"{what} is {value[:80]!r}: 1 to 64 letters, digits and _.- are accepted")
    return value.decode()


def _seconds(value: bytes, what: str) -> float:
    whole, _, fraction = value.partition(b".")
    if not whole.isdigit() or len(value) > 20 or not (fraction.isdigit() or value == whole):
        raise WireError(f"{what} is {value[:40]!r}, which is not a plain number of seconds")
    return float(value)


def head_prefix(epoch: str) -> bytes:
    """The lines that follow the status line of every answer of one interface process."""
    return b"seer-gate: %d\r\nseer-epoch: %s\r\n" % (VERSION, epoch.encode())


def response_head(
    status: int,
    prefix: bytes,
    length: int,
    *,
    content_type: bytes = JSON_TYPE,
    extra: bytes = b"",
    close: bool = False,
) -> bytes:
    """The head of an answer with a body of `length` bytes, including the empty line."""
    return b"HTTP/1.1 %d %s\r\n%scontent-type: %s\r\n%s%scontent-length: %d\r\n\r\n" % (
        status,
        REASONS[status],
        prefix,
        content_type,
        b"connection: close\r\n" if close else b"",
        extra,
        length,
    )
