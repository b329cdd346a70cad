"""Reads and parses requests to a replayed gate.

Requests are hostile, so the live gate's strict parser reads them.
"""

import hashlib
import json
import socket

from seer._redact import Redactor
from seer.errors import ProtocolError
from seer.rpc.server._follows import given
from seer.rpc.server._request_buffers import RequestBuffers
from seer.rpc.wire._descriptors import SPACE, close_each, received
from seer.rpc.wire._http import Request, WireError, parse_request
from seer.rpc.wire._protocol import MAX_DESCRIPTORS, MAX_HEAD
from seer.runs._scrub import scrub_bytes

_MAX_BODY = 1 << 30


class Asked:
    """A request with its parsed body."""

    def __init__(self, request: Request, body: bytes, descriptors: list[int]) -> None:
        self.request = request
        self.text = body
        self.buffers: list[bytes] = []
        if request.pieces is not None:
            try:
                attached = RequestBuffers(body, request, descriptors, _MAX_BODY)
            except ProtocolError:
                # A gate refuses and records this call without its arguments.
                return
            self.text = bytes(attached.text)
            self.buffers = [bytes(view) for view in attached.buffers]
            attached.close()

    @property
    def arguments(self) -> str:
        """The JSON text of `[args, kwargs]`, or of what a gate records of arguments it refuses."""
        return json.dumps(given(self.text), separators=(",", ":"))

    def hashes(self, redactor: Redactor) -> list[str]:
        """The hashes of the arrays, as a record has them."""
        clean = (scrub_bytes(buffer, redactor) for buffer in self.buffers)
        return [hashlib.sha256(buffer).hexdigest() for buffer in clean]


class RequestReader:
    """Reads whole requests from a socket, with the descriptors that come with them."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._data = bytearray()
        self._descriptors: list[int] = []

    def next(self) -> Asked | None:
        """The next request; None at the end.

        Raises:
            WireError: It breaks the protocol.
        """
        while (end := self._data.find(b"\r\n\r\n", 0, MAX_HEAD)) < 0:
            if len(self._data) >= MAX_HEAD:
                raise WireError(f"the head has more than {MAX_HEAD} bytes", 431)
            if not self._more():
                return None
        request = parse_request(bytes(self._data[:end]), max_body=_MAX_BODY)
        del self._data[: end + 4]
        if request.expects and not self._data:
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while len(self._data) < request.length:
            if not self._more():
                return None
        body = bytes(self._data[: request.length])
        del self._data[: request.length]
        if len(self._descriptors) != request.memfds:
            raise WireError(f"{len(self._descriptors)} descriptors came, not {request.memfds}")
        descriptors, self._descriptors = self._descriptors, []
        return Asked(request, body, descriptors)

    def close(self) -> None:
        """Close descriptors that came without a whole request."""
        close_each(self._descriptors)

    def _more(self) -> bool:
        data, ancillary, _, _ = self._socket.recvmsg(1 << 20, SPACE)
        self._descriptors += received(ancillary)
        if len(self._descriptors) > MAX_DESCRIPTORS:
            raise WireError(f"more than {MAX_DESCRIPTORS} descriptors came")
        self._data += data
        return bool(data)
