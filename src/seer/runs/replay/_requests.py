"""Reads and parses requests to a replayed gate.

Requests are hostile, so the live gate's strict parser reads them.
"""

import array
import hashlib
import json
import os
import socket
from typing import Any

from seer._redact import Redactor
from seer.errors import ProtocolError
from seer.rpc.server._request_buffers import RequestBuffers
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
            attached = RequestBuffers(body, request, descriptors, _MAX_BODY)
            self.text = bytes(attached.text)
            self.buffers = [bytes(view) for view in attached.buffers]
            attached.close()

    @property
    def arguments(self) -> str:
        """The JSON text of `[args, kwargs]`."""
        found: Any = json.loads(self.text or b"[[],{}]")
        if isinstance(found, dict):
            found = [found.get("args", []), found.get("kwargs", {})]  # pyright: ignore[reportUnknownMemberType]
        return json.dumps(found, separators=(",", ":"))

    def hashes(self, redactor: Redactor) -> list[str]:
        """The hashes of the arrays, as a record has them."""
        clean = (scrub_bytes(buffer, redactor) for buffer in self.buffers)
        return [hashlib.sha256(buffer).hexdigest() for buffer in clean]


class RequestReader:
    """Reads whole requests from a socket, with the descriptors that come with them."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._data = b""
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
        head, self._data = self._data[:end], self._data[end + 4 :]
        request = parse_request(head, max_body=_MAX_BODY)
        if request.expects and not self._data:
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while len(self._data) < request.length:
            if not self._more():
                return None
        body, self._data = self._data[: request.length], self._data[request.length :]
        descriptors, self._descriptors = self._descriptors, []
        if len(descriptors) != request.memfds:
            for fd in descriptors:
                os.close(fd)
            raise WireError(f"{len(descriptors)} descriptors came, not {request.memfds}")
        try:
            return Asked(request, body, descriptors)
        except ProtocolError as error:
            raise WireError(str(error)) from None

    def _more(self) -> bool:
        data, ancillary, _, _ = self._socket.recvmsg(
            1 << 20, socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        )
        for _, _, payload in ancillary:
            numbers = array.array("i")
            numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
            self._descriptors.extend(numbers)
        self._data += data
        return bool(data)
