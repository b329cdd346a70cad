"""Many wires over one pair of pipes: how a session server is reached on a node behind a launcher.

A launcher such as `srun` runs a program elsewhere and gives no more than its standard streams.
`head.py` runs beside it, where controllers can come, and this carries their wires through.

    head: wire (4 bytes), length (4); then the bytes. A length of 0 ends the wire.

Wire 0 is no wire: it carries the request, the answer, and in the end the reason of the end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = struct.Struct(">II")
_READ = 256 * 1024
NOTE = 0
"""The wire of requests and answers."""


class Multiplexer:
    """One end. Every wire has a thread of its own, which reads from its socket."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._lock = threading.Lock()
        self._wires: dict[int, socket.socket] = {}

    def send(self, wire: int, data: bytes) -> None:
        """Send bytes of a wire; none end it."""
        with self._lock:
            view = memoryview(_HEAD.pack(wire, len(data)) + data)
            while view:
                view = view[os.write(self._writing, view) :]

    def receive(self) -> tuple[int, bytes] | None:
        """The next bytes; None when the multiplexer has ended."""
        head = self._exactly(_HEAD.size)
        if head is None:
            return None
        wire, length = _HEAD.unpack(head)
        data = self._exactly(length)
        return None if data is None else (wire, data)

    def _exactly(self, count: int) -> bytes | None:
        parts: list[bytes] = []
        while count:
            data = os.read(self._reading, min(count, _READ))
            if not data:
                return None
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def add(self, wire: int, end: socket.socket) -> None:
        """Carry a connection from now on."""
        self._wires[wire] = end
        threading.Thread(target=self._carry, args=(wire, end), daemon=True).start()

    def _carry(self, wire: int, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := end.recv(_READ):
                self.send(wire, data)
        with contextlib.suppress(OSError):
            self.send(wire, b"")

    def run(self, on_note: Callable[[bytes], None], accept: Callable[[int], None]) -> None:
        """Deliver what comes until the multiplexer ends.

        Args:
            on_note: Called with what comes on wire 0.
            accept: Called with the number of a wire that is new.
        """
        while (found := self.receive()) is not None:
            wire, data = found
            if wire == NOTE:
                on_note(data)
                continue
            if wire not in self._wires and data:
                accept(wire)
            end = self._wires.get(wire)
            if end is None:
                continue
            if data:
                with contextlib.suppress(OSError):
                    end.sendall(data)
            else:
                del self._wires[wire]
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
