"""What a replayed gate found to differ from its record, for the command that started the replay.

A program can catch the error of a call that differs, and it gets no error for recorded calls that
it does not make. So the gates write both to a file, which `seer replay` makes before the program
begins and reads when it has ended. A gate that cannot write removes the file.
"""

import atexit
import errno
import json
import logging
import os
import threading
from collections import Counter
from pathlib import Path

from seer.runs._calls import GateCall
from seer.runs.replay._match import CallerTape, Tapes, describe

logger = logging.getLogger(__name__)

NOTES_VARIABLE = "SEER_REPLAY_NOTES"
"""Names the file; without it, nothing is written."""


class Differences:
    """What differs between the calls of one replayed gate and its record.

    Args:
        interface: The gate's name.
        tapes: The recorded calls.
        may_end_early: Whether calls that are not made are no difference, because a live interface
            can take over.
        rest: Tells at the end which calls were not made, if other gates have the same calls.
    """

    def __init__(
        self,
        interface: str,
        tapes: Tapes,
        *,
        may_end_early: bool,
        rest: "SharedRest | None" = None,
    ) -> None:
        self._interface = interface
        self._tapes = tapes
        self._may_end_early = may_end_early
        self._rest = rest
        self._lock = threading.Lock()
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
        """Note which recorded calls were not made. Calling it again is harmless.

        A caller that diverged is noted already.
        """
        with self._lock:
            # A fork of the program has copies of its gates, which serve nobody.
            if self._finished or self._process != os.getpid():
                return
            self._finished = True
            if self._count > 1:
                self._write(f"further calls that differ: {self._count - 1}")
            if self._may_end_early:
                return
            tapes = self._tapes.taking_part(f"{self._interface}-in-a-script-")
            if self._rest is not None:
                self._rest.add(tapes)
                return
            for tape in tapes:
                if tape.left and not tape.diverged:
                    _write_not_made(self._interface, tape.caller, tape.left, tape.describe_next())

    def _write(self, message: str) -> None:
        _write(self._interface, message)


class SharedRest:
    """Which recorded calls no gate made, where each gate of a name has the calls of all.

    Args:
        interface: The name of the gates.
    """

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._tapes: dict[str, list[CallerTape]] = {}
        # Another gate may still make them until then.
        atexit.register(self.finish)

    def add(self, tapes: list[CallerTape]) -> None:
        """Note what was made of the calls of one gate."""
        with self._lock:
            for tape in tapes:
                self._tapes.setdefault(tape.caller, []).append(tape)

    def finish(self) -> None:
        """Note which calls no gate made. Calling it again is harmless."""
        with self._lock:
            if self._process != os.getpid():
                return
            for caller, copies in self._tapes.items():
                if any(tape.diverged for tape in copies):
                    continue
                # Of equal calls, each gate makes the first.
                made = Counter(call.key for tape in copies for call in tape.played)
                left: list[GateCall] = []
                for call in copies[0].recorded:
                    made[call.key] -= 1
                    if made[call.key] < 0:
                        left.append(call)
                if left:
                    _write_not_made(self._interface, caller, len(left), describe(left[0]))
            self._tapes = {}


def _write_not_made(interface: str, caller: str, count: int, first: str) -> None:
    _write(
        interface,
        f"{caller!r} did not make {count} of its recorded calls, of which the first is {first}",
    )


def _write(interface: str, message: str) -> None:
    if path := os.environ.get(NOTES_VARIABLE, ""):
        line = json.dumps(f"{interface!r}: {message}") + "\n"
        try:
            opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                # One write, because other processes of the program write there too.
                if os.write(opened, line.encode()) < len(line):
                    raise OSError(errno.ENOSPC, "only a part was written")
            finally:
                os.close(opened)
        except OSError as error:
            logger.error("replay: a difference could not be noted: %s", error)
            Path(path).unlink(missing_ok=True)


def read_differences(path: Path) -> list[str]:
    """What the gates of a program wrote, in its order."""
    if not path.exists():
        return ["the differences could not be written to a temporary file; is the disk full?"]
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
