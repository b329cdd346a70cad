"""What to do with what came back, or did not: answer, try again, or say why not.

A call is executed at most once. One that was certainly not executed is sent again; one that may
have been is asked for by its id; one that was lost with the interface is made again only if its
function is marked idempotent. This module decides and does no input or output, so that blocking
and asynchronous calls behave alike.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...errors import (
    CallLostError,
    DeadlineExceededError,
    GateError,
    InterfaceDiedError,
    InterfaceRestartedError,
)
from ._remote import Starting, error_from

if TYPE_CHECKING:
    from ._responses import Response

MAX_LOSSES = 20
MARGIN = 5.0
"""Seconds past the deadline that the gate is given to say so itself."""


class Retry:
    """Try again after `delay` seconds; with a new id if `renewed`."""

    __slots__ = ("delay", "renewed")

    def __init__(self, delay: float, *, renewed: bool = False) -> None:
        self.delay = delay
        self.renewed = renewed


class AskIdempotent(Exception):
    """The answer depends on whether the function is idempotent; `lost` is the error if not."""

    def __init__(self, lost: CallLostError) -> None:
        super().__init__()
        self.lost = lost


class Attempts:
    """The attempts at one call.

    Args:
        function: Its function's name.
        until: When it must be over (monotonic); 0 for never.
    """

    __slots__ = ("_delay", "_function", "_losses", "_uncertain", "until")

    def __init__(self, function: str, until: float) -> None:
        self.until = until
        self._function = function
        self._uncertain = False
        self._losses = 0
        self._delay = 0.005

    @property
    def patience(self) -> float:
        """Seconds to wait for a sign of life; 0 for as long as usual."""
        return max(self.until - time.monotonic(), 0.0) + MARGIN if self.until else 0.0

    def left(self) -> float:
        """Seconds until the deadline, for the gate.

        Raises:
            DeadlineExceededError: It has passed.
        """
        left = self.until - time.monotonic()
        if left <= 0 and self._uncertain:
            raise DeadlineExceededError(
                f"{self._function}() ran past its deadline, and the connection to it was lost"
            )
        if left <= 0:
            raise DeadlineExceededError(
                f"{self._function}() was not called: its deadline had passed already"
            )
        return left

    def lost(self, error: OSError, *, sent: bool) -> Retry:
        """The connection broke.

        Raises:
            GateError: There is no point in going on.
        """
        self._uncertain = self._uncertain or sent
        self._losses += 1
        if self._losses > MAX_LOSSES:
            raise CallLostError(
                f"{self._function}() was lost: the connection to the gate broke {self._losses}"
                f" times ({error})"
            ) from None
        return Retry(0.0 if self._losses == 1 else 0.01 * self._losses)

    def silent(self) -> GateError:
        """Nothing came for too long."""
        if self.until:
            return DeadlineExceededError(
                f"{self._function}() ran past its deadline, and the gate does not answer; whether"
                " it was stopped is not known"
            )
        return CallLostError(
            f"{self._function}() was given up: the gate has shown no sign of life for minutes"
        )

    def unreachable(self, error: InterfaceDiedError) -> GateError:
        """Nothing listens any more."""
        return self._lost(error) if self._uncertain else error

    def answered(self, response: Response) -> Retry | None:
        """A response came; None if it is the result.

        Raises:
            AskIdempotent: See there.
            Exception: The error that the response carries.
        """
        if response.status == 200:
            return None
        error = error_from(response.text)
        if isinstance(error, Starting):
            if self.until and time.monotonic() + self._delay > self.until:
                raise DeadlineExceededError(
                    f"{self._function}() was not called: its deadline passed while the interface"
                    " was being started"
                )
            self._delay = min(self._delay * 1.5, 0.25)
            return Retry(self._delay)
        if self._uncertain:
            if isinstance(error, InterfaceRestartedError):
                raise AskIdempotent(self._lost(error))
            if isinstance(error, CallLostError):
                raise AskIdempotent(error)
            if isinstance(error, InterfaceDiedError):
                raise self._lost(error)
        try:
            raise error
        finally:
            # A frame that holds what is raised in it is garbage only a collector finds.
            del error

    def made_again(self) -> Retry:
        """The function is idempotent: begin again."""
        self._uncertain = False
        return Retry(0.0, renewed=True)

    def _lost(self, error: GateError) -> CallLostError:
        return CallLostError(
            f"{self._function}() was lost with the interface; whether it had an effect is not"
            f" known. {error}"
        )
