"""Reads responses piece by piece.

`ResponseReader` gets bytes and says when a response is complete. It does no input or output, so
blocking and asynchronous connections share it.
"""

from __future__ import annotations

from ..wire._protocol import (
    FRAMES_TYPE,
    MAX_HEAD,
    STREAM_TYPE,
    VERSION,
    Piece,
    WireError,
    parse_headers,
    parse_number,
    parse_pieces,
    parse_slots,
)


class Response:
    """One response.

    Attributes:
        status: The HTTP status.
        plain: Whether it is JSON without buffers, on a connection that stays open.
        epoch: The epoch of the interface; empty if a proxy answered.
        text: The JSON text.
        body: The whole body, for inline buffers.
        pieces: The places of the buffers; empty for plain JSON.
        slots: The (slot, size) of each descriptor that came with it.
        dropped: Slots that the gate no longer uses.
        streamed: Whether the body follows in chunks.
        close: Whether the connection ends with this response.
    """

    __slots__ = (
        "body",
        "close",
        "dropped",
        "epoch",
        "pieces",
        "plain",
        "slots",
        "status",
        "streamed",
        "text",
    )

    def __init__(self, status: int) -> None:
        self.status = status
        self.plain = False
        self.epoch = ""
        self.text: bytes | memoryview = b""
        self.body: bytes | bytearray = b""
        self.pieces: list[Piece] = []
        self.slots: list[tuple[int, int]] = []
        self.dropped: list[int] = []
        self.streamed = False
        self.close = False


class ResponseReader:
    """Reads the responses of one connection, one after the other."""

    __slots__ = (
        "_body",
        "_filled",
        "_json_size",
        "_rest",
        "_value",
        "_wanted",
        "known",
    )

    def __init__(self) -> None:
        self._rest = b""
        self.known: dict[bytes, tuple[bytes, int, str]] = {}
        """By status: the head of responses without buffers, up to the length; the status as a
        number, and the epoch."""
        self._value: Response | None = None
        self._body: bytearray | None = None
        self._filled = 0
        self._wanted = 0
        self._json_size = 0

    def feed(self, data: bytes) -> Response | None:
        """Add bytes, and return the response once it, or the head of a stream, is complete.

        Raises:
            WireError: It is not a response of the gate.
        """
        known = self.known.get(data[9:12])
        if known is not None and not self._rest and self._body is None:
            # The usual response: the same head as the last one except for the length.
            prefix, status, epoch = known
            start = len(prefix)
            end = data.find(b"\r\n\r\n", start, start + 24)
            length = data[start:end]
            if (
                end > 0
                and data.startswith(prefix)
                and length.isdigit()
                and len(data) - end - 4 == int(length)
            ):
                response = Response(status)
                response.plain = True
                response.epoch = epoch
                response.text = data[end + 4 :]
                return response
        if self._body is not None:
            self._body[self._filled : self._filled + len(data)] = data
            return self.filled(len(data))
        self._rest += data
        while True:
            end = self._rest.find(b"\r\n\r\n", 0, MAX_HEAD)
            if end < 0:
                if len(self._rest) >= MAX_HEAD:
                    raise WireError("the response's head is too long")
                return None
            head, self._rest = self._rest[:end], self._rest[end + 4 :]
            response = self._parse(head)
            if response is not None:
                break
        if response.streamed:
            return response
        if len(self._rest) > self._wanted:
            raise WireError("more bytes came than the response announced")
        self._value = response
        self._body = bytearray(self._wanted)
        first, self._rest = self._rest, b""
        self._body[: len(first)] = first
        self._filled = 0
        return self.filled(len(first))

    def take_rest(self) -> bytes:
        """Remove the bytes that came after a stream's head."""
        rest, self._rest = self._rest, b""
        return rest

    @property
    def room(self) -> memoryview | None:
        """Memory for the rest of the body, once the head is complete."""
        return None if self._body is None else memoryview(self._body)[self._filled :]

    def filled(self, count: int) -> Response | None:
        """Note that `count` bytes were read into `room`, and return the response once complete."""
        self._filled += count
        response, body = self._value, self._body
        if response is None or body is None or self._filled < self._wanted:
            return None
        self._value = self._body = None
        response.body = body
        response.text = bytes(body) if not response.pieces else bytes(body[: self._json_size])
        return response

    def _parse(self, head: bytes) -> Response | None:
        line, *lines = head.split(b"\r\n")
        if not line.startswith(b"HTTP/1.1 ") or not line[9:12].isdigit():
            raise WireError(f"the gate answered {line[:60]!r}, which is not HTTP/1.1")
        status = int(line[9:12])
        if status < 200:
            return None
        headers = parse_headers(lines)
        spoken = headers.get(b"seer-gate", b"")
        if spoken != b"%d" % VERSION:
            raise WireError(
                f"the gate speaks version {spoken.decode('ascii', 'replace')!r} of its protocol,"
                f" but this client speaks {VERSION}: create the session again, so that both match"
            )
        response = Response(status)
        response.epoch = headers.get(b"seer-epoch", b"").decode("ascii", "replace")
        response.close = headers.get(b"connection") == b"close"
        kind = headers.get(b"content-type")
        if headers.get(b"transfer-encoding") == b"chunked" and kind == STREAM_TYPE:
            response.streamed = True
            return response
        length = headers.get(b"content-length")
        if length is None:
            raise WireError("the response has no content-length")
        self._wanted = parse_number(length, "content-length")
        if kind == FRAMES_TYPE:
            self._json_size = parse_number(headers.get(b"seer-json", b""), "seer-json")
            response.pieces = parse_pieces(
                headers.get(b"seer-buffers", b""),
                json_size=self._json_size,
                body_size=self._wanted,
            )
            slots = headers.get(b"seer-slots")
            if slots is not None:
                response.slots = parse_slots(slots)
            dropped = headers.get(b"seer-dropped")
            if dropped is not None:
                response.dropped = [parse_number(n, "a slot") for n in dropped.split(b",")]
        elif not response.close and lines[-1].startswith(b"content-length: "):
            self.known[line[9:12]] = head[: len(head) - len(length)], status, response.epoch
        return response
