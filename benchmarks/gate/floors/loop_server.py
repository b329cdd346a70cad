"""Server of the event-loop floor: one epoll loop decodes, calls and encodes."""

from __future__ import annotations

import json
import select
import sys
from typing import TYPE_CHECKING

from benchmarks.gate.floors._wire import LENGTH, answer, listen, receive

if TYPE_CHECKING:
    import socket

_encode = json.JSONEncoder(separators=(",", ":")).encode


def main(address: str) -> None:
    """Serve forever. Sockets stay blocking, because a caller sends each message as a whole."""
    listener = listen(address)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    door = listener.fileno()
    socks: dict[int, socket.socket] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == door:
                sock, _ = listener.accept()
                socks[sock.fileno()] = sock
                poll.register(sock, select.EPOLLIN)
                continue
            sock = socks[fd]
            data = receive(sock)
            if data is None:
                poll.unregister(fd)
                socks.pop(fd).close()
                continue
            data = _encode(answer(json.loads(data))).encode()
            sock.sendall(LENGTH.pack(len(data)) + data)


if __name__ == "__main__":
    main(sys.argv[1])
