# pyright: basic
# The libraries used here have no type hints.
"""Ray: a driver that calls the named actor."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ray

THREADS_PER_PROCESS = 16
"""A driver takes seconds and hundreds of megabytes to start, so 64 clients share 4 drivers."""


class RayClient:
    """See `Client`."""

    def __init__(self, address: str) -> None:
        where = Path(address).read_text()
        ray.init(address=where, namespace="bench", logging_level=logging.ERROR, log_to_driver=False)
        self._actor: Any = ray.get_actor("work")

    def small(self, x: int) -> int:
        """See `Client`."""
        return ray.get(self._actor.small.remote(x))

    def floats(self, n: int) -> list[float]:
        """See `Client`."""
        return ray.get(self._actor.floats.remote(n))

    def take(self, values: list[float]) -> float:
        """See `Client`."""
        return ray.get(self._actor.take.remote(values))

    def array(self, nbytes: int, stamp: int) -> Any:
        """See `Client`. The result is a view of the object store."""
        return ray.get(self._actor.array.remote(nbytes, stamp))

    def fail(self, message: str) -> None:
        """See `Client`."""
        ray.get(self._actor.fail.remote(message))

    def close(self) -> None:
        """See `Client`."""
        ray.shutdown()


def connect(address: str) -> RayClient:
    """Connect."""
    return RayClient(address)
