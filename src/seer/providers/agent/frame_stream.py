"""One connection at the steward's or keeper's end: frames over a socket's descriptor, with poll.

Nothing here blocks unless its docstring says so.
"""

from __future__ import annotations

import os
import select

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .wire import Encodable, Message

_READ = 256 * 1024


class FrameStream:
    """Frames to and from one peer."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.at_end = False
        """The peer has closed its side, or the connection is broken."""
        self._splitter = wire.Splitter()
        self._unsent = bytearray()
        os.set_blocking(fd, False)

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._unsent)

    def receive(self) -> None:
        """Read once, without blocking."""
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._splitter.feed(data)
        else:
            self.at_end = True

    def next(self) -> tuple[bytes, bytes] | None:
        """The next complete frame, or None."""
        return self._splitter.next()

    def queue(self, kind: bytes, payload: bytes = b"") -> None:
        """Queue a frame, and send as much of the queue as possible."""
        self._unsent += (len(payload) + 1).to_bytes(4, "big") + kind
        self._unsent += payload
        self.send()

    def queue_message(self, kind: bytes, /, **fields: Encodable) -> None:
        """Queue a frame with a dictionary, and send as much of the queue as possible."""
        self.queue(kind, wire.encode(fields))

    def send(self) -> None:
        """Write what fits without blocking. Drop everything if the connection is broken."""
        while self._unsent:
            try:
                sent = os.write(self.fd, self._unsent[:_READ])
            except BlockingIOError:
                return
            except OSError:
                self.at_end = True
                self._unsent.clear()
                return
            del self._unsent[:sent]

    def flush(self) -> None:
        """Block until everything is sent or the connection is broken."""
        while self._unsent:
            self.send()
            if self._unsent:
                _wait(self.fd, select.POLLOUT)

    def wait_frame(self) -> tuple[bytes, bytes] | None:
        """Block until a frame arrives; None if the peer has closed."""
        while True:
            found = self.next()
            if found is not None or self.at_end:
                return found
            _wait(self.fd, select.POLLIN)
            self.receive()

    def wait_request(self) -> Message | None:
        """Block until a request arrives; None if the peer has closed without one."""
        found = self.wait_frame()
        if found is None:
            return None
        kind, payload = found
        if kind != wire.REQUEST:
            raise wire.WireError(f"a request was expected, not a frame of kind {kind!r}")
        return wire.decode_message(payload)

    def fail(self, error: OSError, path: bytes = b"") -> None:
        """Send an error and block until it is sent."""
        name = error.filename or path  # pyright: ignore[reportAny]
        self.queue_message(
            wire.ERROR,
            errno=error.errno or 0,
            message=error.strerror or str(error),
            path=name if isinstance(name, bytes) else str(name),  # pyright: ignore[reportAny]
        )
        self.flush()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def _wait(fd: int, event: int) -> None:
    poll = select.poll()
    poll.register(fd, event)
    poll.poll()
