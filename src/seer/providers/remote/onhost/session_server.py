"""Keeps a controller's streams to one machine open while the network is down. Runs on the host.

A stream leads to the machine's steward or keeper. A controller connects to `porter.sock`; that
connection is a wire, and the streams that it carries belong to a session. A session outlives its
wire by `lease` seconds. Then the server closes the session's streams, which tells the keeper and
the steward that the controller is gone. The server ends with the machine. The socket must keep the
name `porter.sock`, because controllers of other versions connect to it.

`operations.py` starts it with the arguments `LISTENER CONTROL LEASE_MS FOLDER [NAME=FD ...]`.
CONTROL is the connection that holds the machine from its start, or -1. The first session takes it
over. If no session comes, the server closes it. NAME=FD are listening sockets of gates. When a
program in the machine connects to one of them, the connection becomes a stream to the controller.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import time

from . import frames
from .frames import Reliable, Splitter

_FIRST_ATTACH = 15.0
"""Seconds within which the controller that started a machine must connect."""
_READ = 256 * 1024
_FLUSH_SECONDS = 5.0
_LINGER = 5.0
_BEATS = 4
"""The number of missed heartbeats after which a wire counts as broken."""
_TARGETS = {b"keeper": b"keeper.sock", b"steward": b"steward.sock", b"watch": b"keeper.sock"}
"""`watch` connects to the keeper without taking over the connection that holds a new machine."""
_MOST_SESSIONS = 64
_MOST_STREAMS = 8192
_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP


def main() -> None:
    """Serve until the machine has ended."""
    listener, control, lease_ms, folder, *gates = sys.argv[1:]
    gate_names = {int(fd): name for name, _, fd in (gate.partition("=") for gate in gates)}
    SessionServer(
        int(listener), int(control), int(lease_ms) / 1000, os.fsencode(folder), gate_names
    ).run()


class _Stream:
    """A connection to the steward or the keeper."""

    def __init__(self, number: int, connected: socket.socket) -> None:
        self.number = number
        self.socket = connected
        self.fd = connected.fileno()
        self.may_send = frames.WINDOW
        self.waiting = bytearray()
        self.owed = 0
        """Bytes written to the socket for which no credit has been sent."""
        self.read_ended = False
        self.write_ends = False
        self.closes_at: float | None = None

    @property
    def interest(self) -> int:
        wanted = select.EPOLLOUT if self.waiting else 0
        if self.may_send > 0 and not self.read_ended and self.closes_at is None:
            wanted |= select.EPOLLIN
        return wanted


class _Session:
    """One controller's streams."""

    def __init__(self, beat: float) -> None:
        self.reliable = Reliable()
        self.streams: dict[int, _Stream] = {}
        self.wire: _Wire | None = None
        self.beat = beat
        self.cut_at = time.monotonic()


class _Wire:
    """One connection from a controller."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.fd = connected.fileno()
        self.splitter = Splitter()
        self.out = bytearray()
        self.session: _Session | None = None
        self.heard_at = self.beat_at = time.monotonic()


class SessionServer:
    """The event loop with all sessions, wires and streams."""

    def __init__(
        self, listener: int, control: int, lease: float, folder: bytes, gates: dict[int, str]
    ) -> None:
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listener = socket.socket(fileno=listener)
        self._listener.setblocking(False)
        self._control = socket.socket(fileno=control) if control >= 0 else None
        if self._control is not None:
            self._control.setblocking(False)
        self._lease = lease
        self._sessions: dict[bytes, _Session] = {}
        self._wires: dict[int, _Wire] = {}
        self._streams: dict[int, tuple[_Session, _Stream]] = {}
        self._watched: dict[int, int] = {}
        self._epoll = select.epoll()
        self._watch = self._connect(b"keeper.sock")
        for fd in (self._listener.fileno(), self._watch.fileno()):
            self._epoll.register(fd, select.EPOLLIN)
        self._gates = {fd: (socket.socket(fileno=fd), name) for fd, name in gates.items()}
        for fd, (gate, _) in self._gates.items():
            gate.setblocking(False)
            self._epoll.register(fd, select.EPOLLIN)
        self._incoming = 0
        self._started_at = time.monotonic()
        self._ended_at: float | None = None

    def run(self) -> None:
        """Serve until the machine has ended and its last data is sent."""
        tick = 0.0
        while not self._is_over():
            for fd, events in self._epoll.poll(0.25):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == self._watch.fileno():
                    self._read_keeper()
                elif fd in self._gates:
                    self._accept_from_gate(*self._gates[fd])
                elif fd in self._wires:
                    self._serve_wire(self._wires[fd], events)
                elif fd in self._streams:
                    self._serve_stream(*self._streams[fd], events)
            now = time.monotonic()
            if now - tick >= 0.2:
                tick = now
                self._check_timeouts(now)

    def _is_over(self) -> bool:
        if self._ended_at is None:
            return False
        unsent = any(wire.out for wire in self._wires.values())
        unread = any(not stream.read_ended for _, stream in self._streams.values())
        return not (unsent or unread) or time.monotonic() > self._ended_at + _FLUSH_SECONDS

    def _check_timeouts(self, now: float) -> None:
        """Send heartbeats, and close everything that has timed out."""
        if self._control is not None and now > self._started_at + min(self._lease, _FIRST_ATTACH):
            self._control.close()
            self._control = None
        for wire in list(self._wires.values()):
            beat = wire.session.beat if wire.session is not None else _FIRST_ATTACH
            if now > wire.heard_at + beat * _BEATS:
                self._cut(wire)
            elif wire.session is not None and now >= wire.beat_at + beat:
                wire.beat_at = now
                self._post(wire, wire.session.reliable.ack())
        for token, session in list(self._sessions.items()):
            if session.wire is None and now > session.cut_at + self._lease:
                self._forget(token)
        for session, stream in list(self._streams.values()):
            if stream.closes_at is not None and now > stream.closes_at:
                self._drop(session, stream)

    def _read_keeper(self) -> None:
        try:
            if self._watch.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # A broken connection means that the keeper has ended.
        self._epoll.unregister(self._watch.fileno())
        self._ended_at = time.monotonic()

    def _connect(self, name: bytes) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Non-blocking: if the queue is full, the controller gets an error, and this loop never
        # waits.
        connected.setblocking(False)
        try:
            # Use the folder's descriptor, because a socket's address may have at most 107 bytes.
            connected.connect(b"/proc/self/fd/%d/%s" % (self._folder, name))
        except BaseException:
            connected.close()
            raise
        return connected

    def _watch_fd(self, fd: int, events: int) -> None:
        """Watch a descriptor for these events, with as few system calls as possible."""
        known = self._watched.get(fd)
        if known is None:
            self._epoll.register(fd, events)
        elif known != events:
            self._epoll.modify(fd, events)
        self._watched[fd] = events

    def _unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    # --- wires --------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return
        connected.setblocking(False)
        wire = _Wire(connected)
        self._wires[wire.fd] = wire
        self._watch_fd(wire.fd, select.EPOLLIN)

    def _serve_wire(self, wire: _Wire, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(wire)
        if not events & _READABLE:
            return
        try:
            data = wire.socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._cut(wire)
            return
        wire.heard_at = time.monotonic()
        try:
            for kind, number, payload in wire.splitter.feed(data):
                self._handle(wire, kind, number, payload)
                if wire.fd not in self._wires:
                    return
        except frames.FrameError:
            self._cut(wire)

    def _handle(self, wire: _Wire, kind: int, number: int, payload: bytes) -> None:
        session = wire.session
        if session is None:
            if kind != frames.ATTACH:
                raise frames.FrameError(f"a frame of kind {kind} before the first")
            self._attach(wire, payload)
            return
        if kind == frames.ACK:
            session.reliable.acknowledged(payload)
            return
        if kind == frames.BYE:
            for token, found in list(self._sessions.items()):
                if found is session:
                    self._forget(token)
            self._cut(wire)
            return
        due = session.reliable.took(payload)
        if kind == frames.OPEN:
            self._open(session, number, payload)
        elif number in session.streams:
            self._handle_stream_frame(session, session.streams[number], kind, payload)
        if due:
            self._post(wire, session.reliable.ack())

    def _attach(self, wire: _Wire, payload: bytes) -> None:
        token, received, new, beat = frames.read_attach(payload)
        session = self._sessions.get(token)
        if session is None and new and received == 0 and len(self._sessions) < _MOST_SESSIONS:
            session = self._sessions[token] = _Session(max(beat, 0.05))
        if session is None:
            self._post(wire, frames.attached(known=False, received=0))
            return
        if session.wire is not None:
            # The controller reconnects only after the old wire has broken.
            self._cut(session.wire)
        lacking = session.reliable.resume(received)
        session.wire, wire.session = wire, session
        answer = frames.attached(known=True, received=session.reliable.received)
        self._post(wire, answer + b"".join(lacking))

    def _post(self, wire: _Wire, data: bytes) -> None:
        wire.out += data
        self._flush(wire)

    def _flush(self, wire: _Wire) -> None:
        try:
            while wire.out:
                with memoryview(wire.out) as view:
                    sent = wire.socket.send(view[:_READ])
                del wire.out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._cut(wire)
            return
        if wire.fd in self._wires:
            self._watch_fd(wire.fd, select.EPOLLIN | (select.EPOLLOUT if wire.out else 0))

    def _cut(self, wire: _Wire) -> None:
        if self._wires.pop(wire.fd, None) is None:
            return
        self._unwatch(wire.fd)
        wire.socket.close()
        if wire.session is not None:
            wire.session.wire = None
            wire.session.cut_at = time.monotonic()

    def _forget(self, token: bytes) -> None:
        session = self._sessions.pop(token)
        for stream in list(session.streams.values()):
            self._drop(session, stream)

    # --- streams ------------------------------------------------------------------------------

    def _open(self, session: _Session, number: int, target: bytes) -> None:
        if number in session.streams or len(self._streams) >= _MOST_STREAMS:
            raise frames.FrameError(
                f"stream {number} is already open, or there are too many streams"
            )
        try:
            if target == b"keeper" and self._control is not None:
                connected, self._control = self._control, None
            elif target in _TARGETS:
                connected = self._connect(_TARGETS[target])
            else:
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            self._send(session, frames.CLOSE, number, b"%d" % (error.errno or errno.EIO))
            return
        stream = _Stream(number, connected)
        session.streams[number] = stream
        self._streams[stream.fd] = session, stream
        self._watch_fd(stream.fd, stream.interest)

    def _accept_from_gate(self, gate: socket.socket, name: str) -> None:
        """Forward a connection from the machine to a controller, preferably a connected one."""
        try:
            connected, _ = gate.accept()
        except OSError:
            return
        heard = [session for session in self._sessions.values() if session.wire is not None]
        session = next(iter(heard or self._sessions.values()), None)
        if session is None or len(self._streams) >= _MOST_STREAMS:
            connected.close()
            return
        connected.setblocking(False)
        self._incoming += 1
        stream = _Stream(frames.INCOMING + self._incoming, connected)
        session.streams[stream.number] = stream
        self._streams[stream.fd] = session, stream
        self._send(session, frames.OPEN, stream.number, name.encode())
        self._watch_fd(stream.fd, stream.interest)

    def _handle_stream_frame(
        self, session: _Session, stream: _Stream, kind: int, payload: bytes
    ) -> None:
        if kind == frames.DATA:
            if len(stream.waiting) + len(payload) > 2 * frames.WINDOW:
                raise frames.FrameError("the data exceeds its credit")
            stream.waiting += payload
            self._write(session, stream)
        elif kind == frames.CREDIT:
            stream.may_send += frames.read_credit(payload)
            self._watch_fd(stream.fd, stream.interest)
        elif kind == frames.END:
            stream.write_ends = True
            self._write(session, stream)
        elif kind == frames.CLOSE:
            if not stream.waiting:
                self._drop(session, stream)
                return
            stream.closes_at = time.monotonic() + _LINGER
            self._watch_fd(stream.fd, stream.interest)
        else:
            raise frames.FrameError(f"a frame of kind {kind}")

    def _serve_stream(self, session: _Session, stream: _Stream, events: int) -> None:
        if events & select.EPOLLOUT:
            self._write(session, stream)
        if stream.fd not in self._streams or not events & _READABLE:
            return
        if stream.read_ended or stream.may_send <= 0:
            if events & (select.EPOLLHUP | select.EPOLLERR) and not stream.may_send > 0:
                # The other side is gone, but its data is waiting for credit. Watch it again once
                # there is credit.
                self._unwatch(stream.fd)
            elif events & (select.EPOLLHUP | select.EPOLLERR):
                self._close(session, stream, errno.EPIPE)
            return
        try:
            data = stream.socket.recv(min(frames.CHUNK, stream.may_send))
        except BlockingIOError:
            return
        except OSError as error:
            self._close(session, stream, error.errno or errno.EIO)
            return
        if data:
            stream.may_send -= len(data)
            self._send(session, frames.DATA, stream.number, data)
        else:
            stream.read_ended = True
            self._send(session, frames.END, stream.number)
        if stream.fd in self._streams:
            self._watch_fd(stream.fd, stream.interest)

    def _write(self, session: _Session, stream: _Stream) -> None:
        try:
            while stream.waiting:
                with memoryview(stream.waiting) as view:
                    sent = stream.socket.send(view[:_READ])
                del stream.waiting[:sent]
                stream.owed += sent
        except BlockingIOError:
            pass
        except OSError as error:
            self._close(session, stream, error.errno or errno.EIO)
            return
        if not stream.waiting:
            if stream.closes_at is not None:
                self._drop(session, stream)
                return
            if stream.write_ends:
                stream.socket.shutdown(socket.SHUT_WR)
                stream.write_ends = False
        if stream.owed >= frames.WINDOW // 4:
            self._send(session, *frames.credit(stream.number, stream.owed))
            stream.owed = 0
        self._watch_fd(stream.fd, stream.interest)

    def _send(self, session: _Session, kind: int, number: int, payload: bytes = b"") -> None:
        made = session.reliable.number(kind, number, payload)
        if session.wire is not None:
            self._post(session.wire, made)

    def _close(self, session: _Session, stream: _Stream, number: int) -> None:
        self._drop(session, stream)
        self._send(session, frames.CLOSE, stream.number, b"%d" % number)

    def _drop(self, session: _Session, stream: _Stream) -> None:
        if self._streams.pop(stream.fd, None) is None:
            return
        del session.streams[stream.number]
        self._unwatch(stream.fd)
        stream.socket.close()
