"""Length-prefixed messages over a Unix stream socket, for all floors."""

from __future__ import annotations

import socket
import struct
import traceback
from typing import TYPE_CHECKING, Any

from benchmarks.gate import _work

if TYPE_CHECKING:
    from collections.abc import Callable

BACKLOG = 512
LENGTH = struct.Struct("!I")
CHUNK = 1 << 17

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "small": _work.small,
    "floats": _work.floats,
    "take": _work.take,
    "fail": _work.fail,
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Call the requested function; an exception is sent as type, message and traceback."""
    try:
        return {"r": FUNCTIONS[request["f"]](*request["a"])}
    except Exception as error:
        return {"e": [type(error).__name__, str(error), traceback.format_exc()]}


def listen(address: str) -> socket.socket:
    """Bind and listen."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(BACKLOG)
    return listener


def receive(sock: socket.socket) -> bytes | None:
    """One message, or None at the end of the stream. At most one message is in flight."""
    data = sock.recv(CHUNK)
    if not data:
        return None
    size = LENGTH.unpack_from(data)[0] + 4
    if len(data) == size:
        return data[4:]
    parts = [data]
    got = len(data)
    while got < size:
        data = sock.recv(CHUNK)
        if not data:
            return None
        parts.append(data)
        got += len(data)
    return b"".join(parts)[4:]


class WireClient:
    """A client over `receive`, with the codec given by the caller."""

    def __init__(
        self, address: str, pack: Callable[[Any], bytes], unpack: Callable[[bytes], Any]
    ) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect(address)
        self._pack = pack
        self._unpack = unpack

    def _call(self, name: str, *args: Any) -> Any:
        data = self._pack({"f": name, "a": args})
        self._sock.sendall(LENGTH.pack(len(data)) + data)
        data = receive(self._sock)
        if data is None:
            raise ConnectionResetError("server is gone")
        reply = self._unpack(data)
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
        """Not supported: arrays have another floor."""
        raise TypeError(f"no array of {nbytes} bytes here (stamp {stamp})")

    def close(self) -> None:
        """See `Client`."""
        self._sock.close()
