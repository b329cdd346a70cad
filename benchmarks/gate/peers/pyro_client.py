# pyright: basic
# The libraries used here have no type hints.
"""Pyro5's proxy."""

from __future__ import annotations

from typing import Any

import Pyro5
import Pyro5.api

_config: Any = Pyro5.config
_config.SERIALIZER = "msgpack"


class PyroClient:
    """See `Client`."""

    def __init__(self, address: str) -> None:
        self._proxy = Pyro5.api.Proxy(f"PYRO:work@{address}")
        self._proxy._pyroBind()
        self.small = self._proxy.small
        self.floats = self._proxy.floats
        self.take = self._proxy.take
        self.fail = self._proxy.fail

    def array(self, nbytes: int, stamp: int) -> Any:
        """See `Client`."""
        return self._proxy.array(nbytes, stamp)

    def close(self) -> None:
        """See `Client`."""
        self._proxy._pyroRelease()


def connect(address: str) -> PyroClient:
    """Connect."""
    return PyroClient(address)
