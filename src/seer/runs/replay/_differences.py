"""What a replayed gate found to differ from its record, for the command that started the replay.

A program can catch the error of a call that differs, and it gets no error for recorded calls that
it does not make. So the gates write both to a file, which `seer replay` reads when the program has
ended.
"""

import json
import os
import threading
from pathlib import Path

from seer.runs.replay._match import Tapes

NOTES_VARIABLE = "SEER_REPLAY_NOTES"
"""Names the file; without it, nothing is written."""


class Differences:
    """What differs between the calls of one replayed gate and its record.

    Args:
        interface: The gate's name.
        tapes: The recorded calls.
        may_end_early: Whether calls that are not made are no difference, because a live interface
            can take over.
    """

    def __init__(self, interface: str, tapes: Tapes, *, may_end_early: bool) -> None:
        self._interface = interface
        self._tapes = tapes
        self._may_end_early = may_end_early
        self._lock = threading.Lock()
        self._path = os.environ.get(NOTES_VARIABLE, "")
        self._process = os.getpid()
        self._count = 0
        self._finished = False

    def add(self, message: str) -> None:
        """Note a call that the record does not answer. The first one is described."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._write(message)

    def finish(self) -> None:
        """Note which recorded calls were not made. Calling it again is harmless."""
        with self._lock:
            # A fork of the program has copies of its gates, which serve nobody.
            if self._finished or self._process != os.getpid():
                return
            self._finished = True
            if self._count > 1:
                self._write(f"further calls that differ: {self._count - 1}")
            if self._may_end_early:
                return
            for tape in self._tapes.taking_part(f"{self._interface}-in-a-script-"):
                if tape.left:
                    self._write(
                        f"{tape.caller!r} did not make {tape.left} of its recorded calls, of which "
                        f"the first is {tape.describe_next()}"
                    )

    def _write(self, message: str) -> None:
        if self._path:
            line = json.dumps(f"{self._interface!r}: {message}") + "\n"
            # One write, because other processes of the program write there too.
            with Path(self._path).open("ab", buffering=0) as file:
                file.write(line.encode())


def read_differences(path: Path) -> list[str]:
    """What the gates of a program wrote, in its order."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
