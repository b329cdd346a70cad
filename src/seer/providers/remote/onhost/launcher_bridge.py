"""Reaches a session server on a node where only a launcher such as `srun` can start programs.

A launcher offers only the standard streams of the program that it starts. `LauncherBridge` runs the
launcher on the host that controllers can reach. `launched.py` runs at the other end, on the node.
Both ends use a `Multiplexer`, which carries many connections over one pair of pipes:

    header: connection (4 bytes), length (4); then the bytes. A length of 0 ends the connection.

Number 0 is not a connection. It carries the request, the answer, and the reason for the end.

`launched.py` starts the bridge with the arguments `LISTENER REQUEST ANSWER STATE COMMAND...`: three
inherited descriptors (a listening socket, a file with the request, a pipe for the answer), the
folder that records how machines ended, and the launcher's command line. The bridge ends with the
launcher, and SIGTERM ends both. If the bridge is killed, the launcher's input closes, and the
machine ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from seer.providers.agent.cleaning import record_end
elif __name__.startswith("seer_remote."):
    # The bridge runs as part of `seer_remote`. `launched.py` imports only the multiplexer.
    from .cleaning import record_end

_HEAD = struct.Struct(">II")
_READ = 256 * 1024
NOTE = 0
"""The connection number for requests and answers."""
_STDERR_KEPT = 4000


class Multiplexer:
    """One end of the pipes. Each connection has its own thread, which reads from its socket."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._lock = threading.Lock()
        self._wires: dict[int, socket.socket] = {}

    def send(self, wire: int, data: bytes) -> None:
        """Send bytes of a connection. Empty `data` ends the connection."""
        with self._lock:
            view = memoryview(_HEAD.pack(wire, len(data)) + data)
            while view:
                view = view[os.write(self._writing, view) :]

    def receive(self) -> tuple[int, bytes] | None:
        """The next connection number and its bytes; None at the end of the pipe."""
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
        """Relay a connection from now on."""
        self._wires[wire] = end
        threading.Thread(target=self._carry, args=(wire, end), daemon=True).start()

    def _carry(self, wire: int, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := end.recv(_READ):
                self.send(wire, data)
        with contextlib.suppress(OSError):
            self.send(wire, b"")

    def run(self, on_note: Callable[[bytes], None], accept: Callable[[int], None]) -> None:
        """Deliver arriving bytes until the pipe ends.

        Args:
            on_note: Called with the bytes for number 0.
            accept: Called with the number of a new connection.
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


class LauncherBridge:
    """A launcher and the connections through it."""

    def __init__(
        self, listener: int, request: int, answer: int, state: bytes, command: list[str]
    ) -> None:
        self._listener = socket.socket(fileno=listener)
        self._answer = answer
        self._state = state
        self._machine = ""
        self._reason = ""
        self._launcher = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._launcher.stdin is not None and self._launcher.stdout is not None
        self._multiplexer = Multiplexer(
            self._launcher.stdout.fileno(), self._launcher.stdin.fileno()
        )
        with open(request, "rb") as file:
            self._request = file.read()
        self._said = b""
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> None:
        """Relay connections until the launcher has ended, then report how it ended."""
        listening = threading.Thread(target=self._listen, daemon=True)
        hearing = threading.Thread(target=self._hear, daemon=True)
        hearing.start()
        with contextlib.suppress(OSError):
            self._multiplexer.send(NOTE, self._request)
            listening.start()
            self._multiplexer.run(self._note, lambda _: None)
        code = self._launcher.wait()
        hearing.join(2)
        words = self._said.decode(errors="replace").strip()
        how = f"its launcher ended with exit code {code}" + (f": {words}" if words else "")
        if not self._machine:
            self._tell({"error": {"type": "ProviderError", "message": how}})
        else:
            record_end(self._state, self._machine, self._reason or how, at=time.time())

    def _stop(self, number: int, frame: object) -> None:
        self._launcher.terminate()

    def _listen(self) -> None:
        number = NOTE
        while True:
            connected, _ = self._listener.accept()
            number += 1
            self._multiplexer.add(number, connected)

    def _hear(self) -> None:
        assert self._launcher.stderr is not None
        while data := os.read(self._launcher.stderr.fileno(), 65536):
            self._said = (self._said + data)[-_STDERR_KEPT:]

    def _note(self, data: bytes) -> None:
        message = json.loads(data)
        if "ended" in message:
            self._reason = message["ended"]
            return
        if "ok" in message:
            self._machine = message["ok"]["id"]
        self._tell(message)

    def _tell(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._answer, json.dumps(message).encode())
            os.close(self._answer)


def main() -> None:
    """Relay connections until the launcher has ended."""
    listener, request, answer, state, *command = sys.argv[1:]
    LauncherBridge(int(listener), int(request), int(answer), os.fsencode(state), command).run()
