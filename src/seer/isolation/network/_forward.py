"""A script that runs inside a jail and offers the proxy's Unix socket as an HTTP proxy on loopback.

`python -I -S forward.py SOCKET [PORT [PROGRAM ARGUMENT...]]` listens on 127.0.0.1 in the jail's own
network and passes bytes both ways; the proxy outside makes all decisions. With a program, this
process becomes the program, and the forwarder is a child that ends with it. It uses only the
standard library and one thread.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys

DEFAULT_PORT = 3128
_CHUNK = 65536
_HIGH_WATER = 1 << 20
_MOST_PAIRS = 256


class _End:
    """One side of a connection: its socket, and the bytes to be written to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.peer: _End = self
        self.waiting = bytearray()
        self.ended = False
        """The socket has reached the end of its input."""
        self.told = False
        """The socket is shut down for writing."""
        self.closed = False

    def events(self) -> int:
        """The events to wait for."""
        wanted = 0
        if not self.ended and len(self.peer.waiting) < _HIGH_WATER:
            wanted |= selectors.EVENT_READ
        if self.waiting:
            wanted |= selectors.EVENT_WRITE
        return wanted


class Forwarder:
    """Forwards connections from a listening socket to a Unix socket."""

    def __init__(self, listener: socket.socket, target: str) -> None:
        self._listener = listener
        self._target = target
        self._selector = selectors.DefaultSelector()
        self._pairs = 0
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)

    def run(self) -> None:
        """Serve until the process ends."""
        while True:
            for key, events in self._selector.select():
                end: _End | None = key.data
                if end is None:
                    self._accept()
                    continue
                try:
                    if events & selectors.EVENT_WRITE and not end.closed:
                        self._flush(end)
                    if events & selectors.EVENT_READ and not end.closed:
                        self._read(end)
                except OSError:
                    self._drop(end)

    def _accept(self) -> None:
        try:
            inner, _ = self._listener.accept()
        except OSError:
            return
        outer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self._pairs >= _MOST_PAIRS:
                raise ConnectionRefusedError
            outer.connect(self._target)
        except OSError:
            inner.close()
            outer.close()
            return
        ends = _End(inner), _End(outer)
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        self._pairs += 1
        for end in ends:
            end.sock.setblocking(False)
            self._selector.register(end.sock, selectors.EVENT_READ, end)

    def _read(self, end: _End) -> None:
        try:
            data = end.sock.recv(_CHUNK)
        except BlockingIOError:
            return
        if data:
            end.peer.waiting += data
        else:
            end.ended = True
        self._flush(end.peer)

    def _flush(self, end: _End) -> None:
        if end.waiting:
            try:
                sent = end.sock.send(end.waiting)
            except BlockingIOError:
                sent = 0
            del end.waiting[:sent]
        if end.peer.ended and not end.waiting:
            if end.ended and not end.peer.waiting:
                self._drop(end)
                return
            if not end.told:
                end.told = True
                end.sock.shutdown(socket.SHUT_WR)
        self._watch(end)
        self._watch(end.peer)

    def _watch(self, end: _End) -> None:
        wanted = end.events()
        known = end.sock.fileno() in self._selector.get_map()
        if wanted and known:
            self._selector.modify(end.sock, wanted, end)
        elif wanted:
            self._selector.register(end.sock, wanted, end)
        elif known:
            self._selector.unregister(end.sock)

    def _drop(self, end: _End) -> None:
        if end.closed:
            return
        self._pairs -= 1
        for side in (end, end.peer):
            if side.sock.fileno() in self._selector.get_map():
                self._selector.unregister(side.sock)
            side.closed = True
            side.sock.close()


def main() -> None:
    """Listen, and forward."""
    port = int(sys.argv[2]) if len(sys.argv) > 2 else DEFAULT_PORT
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(512)
    program = sys.argv[3:]
    if program:
        parent = os.getpid()
        if os.fork():
            listener.close()
            os.execv(program[0], program)
        _end_with(parent)
    Forwarder(listener, sys.argv[1]).run()


def _end_with(parent: int) -> None:
    """Let this process die with its parent, and close its copies of the parent's output."""
    import ctypes  # takes longer to load than the rest, and machines do not need it

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


if __name__ == "__main__":
    main()
