"""Wait for things that send no event: frequent checks, a time limit, and no busy core."""

import asyncio
import select
import time
from collections.abc import Callable

BETWEEN = 0.01
"""Seconds between two looks; whoever spins takes the time from what is waited for."""


def wait_until(condition: Callable[[], object], what: str, *, within: float = 30.0) -> None:
    """Wait until it is true; fail after a time limit, with the words for what did not happen."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {within:g} s"
        select.select([], [], [], BETWEEN)


async def await_until(condition: Callable[[], object], what: str, *, within: float = 30.0) -> None:
    """The same, while other tasks run."""
    await asyncio.to_thread(wait_until, condition, what, within=within)
