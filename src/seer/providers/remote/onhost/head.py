"""Runs a launcher on the host that controllers can reach, and carries their wires through it.

Started by `launched.py` as `head LISTENER REQUEST ANSWER STATE COMMAND...`: three inherited descriptors
(a listening socket, a file with the request, a pipe for the answer), the folder for how machines
ended, and the launcher's command line. It lives as long as the launcher, and ends it when told to
(SIGTERM). When it is killed, the launcher's input ends, and with that the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

from .multiplexer import NOTE, Multiplexer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from seer.providers.agent.cleaning import record_end
else:
    # They lie side by side on a host.
    from .cleaning import record_end

_STDERR_KEPT = 4000


def main() -> None:
    """Carry wires until the launcher has ended."""
    listener, request, answer, state, *command = sys.argv[1:]
    Head(int(listener), int(request), int(answer), os.fsencode(state), command).run()


class Head:
    """A launcher, and the wires through it."""

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
        """Carry wires until the launcher has ended; then say how."""
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
