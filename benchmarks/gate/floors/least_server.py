"""Server of the minimal-work floor: decode in the connection's thread, call in one worker."""

from __future__ import annotations

import json
import socket
import sys
import threading
from queue import SimpleQueue
from typing import Any

from benchmarks.gate.floors._wire import LENGTH, answer, listen, receive

_encode = json.JSONEncoder(separators=(",", ":")).encode
_Job = tuple[socket.socket, dict[str, Any]]


def _work(jobs: SimpleQueue[_Job]) -> None:
    while True:
        sock, request = jobs.get()
        data = _encode(answer(request)).encode()
        try:
            sock.sendall(LENGTH.pack(len(data)) + data)
        except OSError:
            sock.close()


def _read(sock: socket.socket, jobs: SimpleQueue[_Job]) -> None:
    while (data := receive(sock)) is not None:
        jobs.put((sock, json.loads(data)))
    sock.close()


def main(address: str) -> None:
    """Serve forever."""
    jobs: SimpleQueue[_Job] = SimpleQueue()
    threading.Thread(target=_work, args=(jobs,), daemon=True).start()
    listener = listen(address)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=_read, args=(sock, jobs), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
