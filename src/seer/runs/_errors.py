"""Exceptions of the run record, all of them leaves of `seer.errors`."""

from seer.errors import SeerError


class RecordError(SeerError, OSError):
    """A record cannot be written or read; the message names the file and the reason."""


class RunNotFoundError(SeerError, LookupError):
    """There is no run of this name, or several fit it."""


class ReplayDivergenceError(SeerError, AssertionError):
    """A replayed program did something else than the recorded one.

    Attributes:
        recorded: What the record holds at this point; empty when it holds nothing more.
        found: What the program did.
    """

    def __init__(self, message: str, *, recorded: str, found: str) -> None:
        super().__init__(message)
        self.recorded = recorded
        self.found = found
