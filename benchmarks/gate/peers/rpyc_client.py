# pyright: basic
# The libraries used here have no type hints.
"""RPyC's blocking client."""

from __future__ import annotations

from typing import Any

from rpyc.utils.factory import unix_connect


class RpycClient:
    """See `Client`."""

    def __init__(self, address: str) -> None:
        self._connection = unix_connect(address, config={"sync_request_timeout": 60})
        root = self._connection.root
        self._floats = root.floats
        self._take = root.take
        self._array = root.array
        self.small = root.small
        self.fail = root.fail

    def floats(self, n: int) -> list[float]:
        """See `Client`."""
        return list(self._floats(n))

    def take(self, values: list[float]) -> float:
        """See `Client`."""
        return self._take(tuple(values))

    def array(self, nbytes: int, stamp: int) -> Any:
        """See `Client`."""
        return self._array(nbytes, stamp)

    def close(self) -> None:
        """See `Client`."""
        self._connection.close()


def connect(address: str) -> RpycClient:
    """Connect."""
    return RpycClient(address)
