"""Server of the raw floor: a thread per connection, msgpack, the call inline."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from benchmarks.gate._msgpack import pack, unpack
from benchmarks.gate.floors._wire import LENGTH, answer, listen, receive

if TYPE_CHECKING:
    import socket


def _serve(sock: socket.socket) -> None:
    while (data := receive(sock)) is not None:
        data = pack(answer(unpack(data)))
        sock.sendall(LENGTH.pack(len(data)) + data)
    sock.close()


def main(address: str) -> None:
    """Serve forever."""
    listener = listen(address)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=_serve, args=(sock,), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
