"""Connections between a controller and sockets in the machine, one relayed stream for each.

After the `OK` frame the connection carries raw bytes in both directions. Listening takes two
requests: `listen` binds a socket for as long as its connection is open. Each `accept` waits for one
program to connect, and then relays that connection.
"""

from __future__ import annotations

import errno
import os
import select
import sys

from . import wire
from .c_modules import accept_from, socket, with_address
from .frame_stream import FrameStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .wire import Message

_BUFFER = 256 * 1024


def connect(stream: FrameStream, request: Message, cwd: bytes) -> None:
    """Connect to a Unix socket (`path`) or a loopback port (`port`), and relay."""
    if "port" in request:
        port = wire.get_int(request, "port")
        if not 1 <= port <= 65535:
            raise wire.WireError(f"no port has the number {port}")
        peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        peer.connect(("127.0.0.1", port))
    else:
        path = os.path.join(cwd, wire.get_bytes(request, "path"))
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with_address(path, peer.connect)
    stream.queue(wire.OK)
    stream.flush()
    relay(stream, peer)


class Listeners:
    """The sockets bound by `listen` requests.

    The process that serves a `listen` request passes the bound socket to the steward over a socket
    pair. Later forks of the steward inherit it and can accept on it.
    """

    def __init__(self) -> None:
        kind = socket.SOCK_SEQPACKET
        self._steward_end, self._fork_end = socket.socketpair(socket.AF_UNIX, kind)
        self._steward_end.setblocking(False)
        self._bound: dict[bytes, int] = {}

    @property
    def fd(self) -> int:
        """The steward's end, to poll."""
        return self._steward_end.fileno()

    def add(self, path: bytes, listener: socket.socket) -> None:
        """Pass a bound socket to the steward."""
        rights = listener.fileno().to_bytes(4, sys.byteorder)
        self._fork_end.sendmsg([b"+" + path], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def drop(self, path: bytes) -> None:
        """Tell the steward to close a socket."""
        self._fork_end.send(b"-" + path)

    def update(self) -> None:
        """In the steward: receive the sockets that were passed."""
        while True:
            try:
                note, extra, _, _ = self._steward_end.recvmsg(8192, socket.CMSG_SPACE(4))
            except OSError:
                return
            old = self._bound.pop(note[1:], None)
            if old is not None:
                os.close(old)
            for _, _, rights in extra:
                fd = int.from_bytes(rights[:4], sys.byteorder)
                os.set_inheritable(fd, False)
                self._bound[note[1:]] = fd

    def find(self, path: bytes) -> int:
        """The descriptor of the socket bound at `path`; raises `ENOENT` if there is none."""
        if path not in self._bound:
            raise OSError(errno.ENOENT, "no listener of this controller is bound here", path)
        return self._bound[path]


def listen(stream: FrameStream, path: bytes, listeners: Listeners) -> None:
    """Bind a Unix socket while this connection is open."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with_address(path, listener.bind)
    try:
        listener.listen(512)
        listeners.add(path, listener)
        listener.close()
        stream.queue(wire.OK)
        while stream.wait_frame() is not None:
            continue
    finally:
        os.unlink(path)
        listeners.drop(path)


def accept(stream: FrameStream, path: bytes, listeners: Listeners) -> None:
    """Wait for one connection to a listening socket, and relay it."""
    listener = socket.socket(fileno=listeners.find(path))
    listener.setblocking(False)
    poll = select.poll()
    poll.register(listener.fileno(), select.POLLIN)
    poll.register(stream.fd, select.POLLIN)
    while True:
        poll.poll()
        try:
            fd = accept_from(listener)
        except BlockingIOError:
            stream.receive()
            if stream.at_end:
                return
            continue
        stream.queue(wire.OK)
        stream.flush()
        relay(stream, socket.socket(fileno=fd))
        return


def relay(stream: FrameStream, peer: socket.socket) -> None:
    """Copy bytes both ways until both directions have ended."""
    peer.setblocking(False)
    far = peer.fileno()
    # (from, to, end of the receiving side)
    directions = [
        _Direction(stream.fd, far, lambda: peer.shutdown(socket.SHUT_WR)),
        _Direction(far, stream.fd, lambda: _end_writing(stream)),
    ]
    while directions:
        poll = select.poll()
        wanted: dict[int, int] = {}
        for direction in directions:
            fd, event = direction.waits_for()
            wanted[fd] = wanted.get(fd, 0) | event
        for fd, event in wanted.items():
            poll.register(fd, event)
        poll.poll()
        directions = [direction for direction in directions if direction.step()]
    peer.close()


class _Direction:
    def __init__(self, source: int, target: int, end: object) -> None:
        self._source = source
        self._target = target
        self._end = end
        self._held = b""

    def waits_for(self) -> tuple[int, int]:
        return (self._target, select.POLLOUT) if self._held else (self._source, select.POLLIN)

    def step(self) -> bool:
        """Copy what is possible without blocking. Returns False once this direction has ended."""
        try:
            if not self._held:
                self._held = os.read(self._source, _BUFFER)
                if not self._held:
                    self._end()  # pyright: ignore[reportCallIssue]
                    return False
            self._held = self._held[os.write(self._target, self._held) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def _end_writing(stream: FrameStream) -> None:
    socket.socket(fileno=os.dup(stream.fd)).shutdown(socket.SHUT_WR)
