"""ZeroMQ: one REQ socket."""

from __future__ import annotations

from typing import Any

import zmq

from benchmarks.gate._msgpack import pack, unpack


class ZmqClient:
    """See `Client`."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._sock = self._context.socket(zmq.REQ)
        self._sock.setsockopt(zmq.LINGER, 0)
        self._sock.setsockopt(zmq.RCVTIMEO, 60_000)
        self._sock.setsockopt(zmq.RECONNECT_IVL, 1)
        self._sock.connect(address)

    def _call(self, name: str, *arguments: Any) -> Any:
        self._sock.send(pack((name, arguments)))
        reply = unpack(self._sock.recv())
        if "e" in reply:
            raise ValueError(reply["e"][1])
        return reply["r"]

    def small(self, x: int) -> int:
        """See `Client`."""
        return self._call("small", x)

    def floats(self, n: int) -> list[float]:
        """See `Client`."""
        return self._call("floats", n)

    def take(self, values: list[float]) -> float:
        """See `Client`."""
        return self._call("take", values)

    def fail(self, message: str) -> None:
        """See `Client`."""
        self._call("fail", message)

    def array(self, nbytes: int, stamp: int) -> Any:
        """See `Client`."""
        self._call("array", nbytes, stamp)
        return self._sock.recv(copy=False).buffer

    def close(self) -> None:
        """See `Client`."""
        self._context.destroy(linger=0)


def connect(address: str) -> ZmqClient:
    """Connect."""
    return ZmqClient(address)
