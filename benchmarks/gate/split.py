"""Where the time of a small call goes: `python benchmarks/gate/split.py [rounds]`.

This measures pairs of processes over a Unix socket pair. Each pair adds one step: bytes only, then
JSON, then a hand-over to a worker thread, then other ways to wait. Every pair is measured on the
cores that the kernel chooses, on one core, and on two. It writes no results file; it explains the
floors, see `floor-notes.md`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

now = time.perf_counter_ns
_encode = json.JSONEncoder(separators=(",", ":")).encode
_CHUNK = 65536
_SPIN_NS = 50_000
_SECONDS = 0.1


def _answer(request: Any) -> bytes:
    return _encode({"r": request["a"][0] + 1}).encode()


def bytes_server(sock: socket.socket) -> None:
    """Echo: two system calls and the wake-ups."""
    while data := sock.recv(_CHUNK):
        sock.sendall(data)


def inline_server(sock: socket.socket) -> None:
    """Decode, call, encode in the thread that reads."""
    while data := sock.recv(_CHUNK):
        sock.sendall(_answer(json.loads(data)))


def spinning_server(sock: socket.socket) -> None:
    """Like `inline_server`, but it polls for a while before it waits for the next request."""
    sock.setblocking(False)
    while data := _spin(sock):
        sock.send(_answer(json.loads(data)))


def hop_server(sock: socket.socket) -> None:
    """Decode in the thread that reads; call, encode and send in a worker."""
    jobs: SimpleQueue[Any] = SimpleQueue()

    def work() -> None:
        while (job := jobs.get()) is not None:
            sock.sendall(_answer(job))

    threading.Thread(target=work, daemon=True).start()
    while data := sock.recv(_CHUNK):
        jobs.put(json.loads(data))
    jobs.put(None)


def spinning_hop_server(sock: socket.socket) -> None:
    """Like `hop_server`, but the worker polls the queue for a while before it waits."""
    jobs: SimpleQueue[Any] = SimpleQueue()

    def take() -> Any:
        end = now() + _SPIN_NS
        while not jobs.qsize() and now() < end:
            os.sched_yield()
        return jobs.get()

    def work() -> None:
        while (job := take()) is not None:
            sock.sendall(_answer(job))

    threading.Thread(target=work, daemon=True).start()
    while data := sock.recv(_CHUNK):
        jobs.put(json.loads(data))
    jobs.put(None)


def back_server(sock: socket.socket) -> None:
    """Hand over in both directions: the thread that reads also sends the worker's answer."""
    jobs: SimpleQueue[Any] = SimpleQueue()
    done: SimpleQueue[bytes] = SimpleQueue()
    wake = os.eventfd(0)

    def work() -> None:
        while (job := jobs.get()) is not None:
            done.put(_answer(job))
            os.eventfd_write(wake, 1)

    threading.Thread(target=work, daemon=True).start()
    poll = select.epoll()
    poll.register(sock, select.EPOLLIN)
    poll.register(wake, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == wake:
                os.eventfd_read(wake)
                sock.sendall(done.get())
            elif data := sock.recv(_CHUNK):
                jobs.put(json.loads(data))
            else:
                jobs.put(None)
                return


def _spin(sock: socket.socket) -> bytes:
    end = now() + _SPIN_NS
    while True:
        try:
            return sock.recv(_CHUNK)
        except BlockingIOError:
            if now() < end:
                os.sched_yield()
            else:
                select.select([sock], [], [])


def bytes_client(sock: socket.socket) -> Call:
    """The same bytes again and again."""

    def call() -> object:
        sock.sendall(b'{"f":"small","a":[1]}')
        return sock.recv(_CHUNK)

    return call


def json_client(sock: socket.socket) -> Call:
    """Encode, send, wait, decode."""

    def call() -> object:
        sock.sendall(_encode({"f": "small", "a": [1]}).encode())
        return json.loads(sock.recv(_CHUNK))

    return call


def spinning_client(sock: socket.socket) -> Call:
    """Like `json_client`, but it polls for a while before it waits."""
    sock.setblocking(False)

    def call() -> object:
        sock.send(_encode({"f": "small", "a": [1]}).encode())
        return json.loads(_spin(sock))

    return call


PAIRS: tuple[tuple[str, Any, Any], ...] = (
    ("bytes only", bytes_server, bytes_client),
    ("JSON, inline", inline_server, json_client),
    ("JSON, inline, client spins", inline_server, spinning_client),
    ("JSON, inline, both spin", spinning_server, spinning_client),
    ("JSON, worker", hop_server, json_client),
    ("JSON, worker, client spins", hop_server, spinning_client),
    ("JSON, worker, worker and client spin", spinning_hop_server, spinning_client),
    ("JSON, worker and back", back_server, json_client),
)


class Pair:
    """A server process and a client in this process."""

    def __init__(self, server: Callable[[socket.socket], None], client: Any) -> None:
        self._mine, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self._mine.close()
            try:
                server(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._call: Call = client(self._mine)
        self.found: dict[str, list[float]] = {"free": [], "one core": [], "two cores": []}

    def measure(self, name: str, server: set[int], client: set[int]) -> None:
        """Add one median, in microseconds, with both sides pinned to the given cores."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), server)
        os.sched_setaffinity(0, client)
        call = self._call
        samples: list[int] = []
        end = now() + int(_SECONDS * 1e9)
        while (begin := now()) < end:
            call()
            samples.append(now() - begin)
        self.found[name].append(statistics.median(samples[20:]) / 1e3)

    def close(self) -> None:
        """End the server."""
        self._mine.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def main(rounds: int) -> None:
    """Measure all pairs in turn and print medians of the rounds."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("this needs two cores")
    pairs = {title: Pair(server, client) for title, server, client in PAIRS}
    try:
        for _ in range(rounds):
            for pair in pairs.values():
                pair.measure("free", set(cores), set(cores))
                pair.measure("one core", {cores[0]}, {cores[0]})
                pair.measure("two cores", {cores[1]}, {cores[0]})
    finally:
        for pair in pairs.values():
            pair.close()
    for title, pair in pairs.items():
        cells = "  ".join(
            f"{name} {statistics.median(values):6.1f} ({min(values):.0f} to {max(values):.0f})"
            for name, values in pair.found.items()
        )
        print(f"{title:38} {cells}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
