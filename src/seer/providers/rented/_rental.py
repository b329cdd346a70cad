"""A rented machine from the vendor's side: rent it, watch it, and find out why it ended."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar

from seer.errors import CapacityError, SandboxLostError

logger = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 30.0


class Rental(ABC):
    """A machine that costs money until it ends. Errors are Seer's, with the vendor's message."""

    id: str
    """The vendor's id for the machine."""
    price: float | None
    """US dollars per second; None if that is unknown."""

    @abstractmethod
    async def lost(self) -> SandboxLostError | None:
        """How it ended; None while it exists.

        Raises:
            ProviderError: The vendor does not answer.
        """

    @abstractmethod
    async def gone(self, patience: float) -> bool:
        """Wait at most `patience` seconds for it to end. Returns whether it has.

        Raises:
            ProviderError: The vendor does not answer.
        """

    @abstractmethod
    async def end(self) -> None:
        """End the rental, and wait until the vendor confirms. Ending twice is harmless.

        Raises:
            ProviderError: The vendor does not answer; the machine then ends itself.
        """


_ENDS = {
    80: ("terminated", "terminated"),
    81: ("timeout", "its timeout passed"),
    82: ("idle", "it was idle for too long"),
    83: ("lease", "its controller was silent for longer than the lease"),
    84: ("controller is gone", "its controller is gone"),
    85: ("memory limit", "it was over its memory limit"),
    86: ("disk limit", "it was over its disk limit"),
    87: ("first process", "its first process ended"),
    88: ("keeper was killed", "its keeper was killed"),
}
"""For each exit code of the rental monitor: words to find in the reason for the end, and the whole
reason."""

CODES = {words: code for code, (words, _) in _ENDS.items()}
"""The exit code for words in a reason. The first match counts."""


def reason_of(code: int) -> str | None:
    """The reason for an exit code of the rental monitor; None for other codes."""
    return _ENDS[code][1] if code in _ENDS else None


async def retry_until_capacity(
    attempt: Callable[[float], Awaitable[T]], *, what: str, patience: float
) -> T:
    """Retry until the vendor has capacity.

    Args:
        attempt: Called with the seconds left.
        what: The awaited resource, for messages.
        patience: Seconds after which to give up.

    Raises:
        CapacityError: There was no capacity within `patience`. Has the vendor's last message.
    """
    began = time.monotonic()
    pause = FIRST_PAUSE
    while True:
        left = patience - (time.monotonic() - began)
        try:
            return await attempt(left)
        except CapacityError as error:
            waited = time.monotonic() - began
            left = patience - waited
            if left <= pause:
                raise CapacityError(
                    f"{what}: no capacity within start_timeout={patience:g} s ({error}); try "
                    f"another gpu, or try again later with a longer start_timeout"
                ) from error
            logger.warning(
                "%s: no capacity yet (%s); waited %.0f s, up to %.0f s more",
                what,
                error,
                waited,
                left,
            )
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
