"""No capacity: wait for it, visibly and not for ever."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from seer.errors import CapacityError

logger = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 30.0


async def when_there_is_room(
    attempt: Callable[[float], Awaitable[T]], *, what: str, patience: float
) -> T:
    """Try until there is capacity.

    Args:
        attempt: Called with the seconds left.
        what: What is waited for, for people.
        patience: Seconds after which to give up.

    Raises:
        CapacityError: There was none all the while; with the vendor's last words.
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
                    f"another gpu, or again later with a longer start_timeout"
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
