"""Ctrl-C on the command line: one line, and no traceback.

Before a command runs, nothing has been started, so Ctrl-C ends the process at once. While a command
runs, the first Ctrl-C raises `KeyboardInterrupt`, and the command ends everything that it started.
The second is ignored, because that clean-up is under way. The third ends the process at once;
machines that still run then end with their leases.
"""

import os
import signal
from types import FrameType

from seer.cli._codes import INTERRUPTED


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with one line that says what was kept and how to continue."""


class Presses:
    """Handles Ctrl-C in this process, unless it is ignored, as in a shell's background jobs."""

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
            os.write(2, b"interrupted: machines that are left end by themselves; see `seer ps`\n")
            os._exit(INTERRUPTED)
