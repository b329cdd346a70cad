"""Ctrl-C on the command line: one line, and no traceback.

Before a command runs, nothing has been started, so Ctrl-C ends the process at once. While a command
runs, the first Ctrl-C raises `KeyboardInterrupt`, and everything that was started ends. A second
one is ignored, because that is under way. A third one ends the process at once; machines that are
left end with their leases.
"""

import os
import signal
from types import FrameType

from seer.cli._codes import INTERRUPTED


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with one line on what was kept and how to go on."""


class Presses:
    """What Ctrl-C does in this process, where it is not ignored as in a shell's background jobs."""

    def __init__(self) -> None:
        self._count = 0
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._leave)

    def command_runs(self) -> None:
        """From now on, the first Ctrl-C raises."""
        if signal.getsignal(signal.SIGINT) == self._leave:
            signal.signal(signal.SIGINT, self._raise)

    def over(self) -> None:
        """From now on, ignore Ctrl-C: the process is about to end."""
        if signal.getsignal(signal.SIGINT) in (self._leave, self._raise):
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        os.write(2, b"interrupted: nothing was started\n")
        os._exit(INTERRUPTED)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            raise KeyboardInterrupt
        if self._count > 2:
            os.write(2, b"interrupted: what is left ends by itself; see `seer ps`\n")
            os._exit(INTERRUPTED)
