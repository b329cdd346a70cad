"""Decides what follows an attempt at a call: a result, an error, or another attempt.

A call is executed at most once. If it was certainly not executed, it is sent again. If it may have
been executed, it is sent again with the same id, and the gate answers with the first result. If it
was lost with the interface, it is made again only if its function is idempotent. This module does
no input or output, so that blocking and asynchronous calls behave alike.
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
from ._errors import Starting, error_from

if TYPE_CHECKING:
    from ._responses import Response

MAX_LOSSES = 20
MARGIN = 5.0
"""Seconds after the deadline in which the gate itself should answer."""


class TryAgain:
    """The decision to try again after `delay` seconds; with a new id if `renewed`."""

    __slots__ = ("delay", "renewed")

    def __init__(self, delay: float, *, renewed: bool = False) -> None:
        self.delay = delay
        self.renewed = renewed


class AskIdempotent(Exception):
    """The next step depends on whether the function is idempotent; `lost` is the error if not."""

    def __init__(self, lost: CallLostError) -> None:
        super().__init__()
        self.lost = lost


class Attempts:
    """The attempts at one call.

    Args:
        function: Its function's name.
        until: Its deadline (monotonic); 0 for none.
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
        """Seconds to wait for a sign of life; 0 for the default."""
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

    def lost(self, error: OSError, *, sent: bool) -> TryAgain:
        """Decide after the connection broke.

        Raises:
            GateError: It broke too often.
        """
        self._uncertain = self._uncertain or sent
        self._losses += 1
        if self._losses > MAX_LOSSES:
            raise CallLostError(
                f"{self._function}() was lost: the connection to the gate broke {self._losses}"
                f" times ({error})"
            ) from None
        return TryAgain(0.0 if self._losses == 1 else 0.01 * self._losses)

    def silent(self) -> GateError:
        """The error for a gate that sent nothing for too long."""
        if self.until:
            return DeadlineExceededError(
                f"{self._function}() ran past its deadline, and the gate does not answer; whether"
                " it was stopped is not known"
            )
        return CallLostError(
            f"{self._function}() was given up: the gate has shown no sign of life for minutes"
        )

    def unreachable(self, error: InterfaceDiedError) -> GateError:
        """The error for a gate that is gone."""
        return self._lost(error) if self._uncertain else error

    def answered(self, response: Response) -> TryAgain | None:
        """Decide after a response; None if it carries the result.

        Raises:
            AskIdempotent: The call was lost with the interface.
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
            return TryAgain(self._delay)
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
            # A frame that refers to its own exception is a cycle, which only the collector frees.
            del error

    def made_again(self) -> TryAgain:
        """Begin again with a new id, because the function is idempotent."""
        self._uncertain = False
        return TryAgain(0.0, renewed=True)

    def _lost(self, error: GateError) -> CallLostError:
        return CallLostError(
            f"{self._function}() was lost with the interface; whether it had an effect is not"
            f" known. {error}"
        )
