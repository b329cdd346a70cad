"""Client of the plain design: `requests.post` in its simplest form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import requests


class PlainClient:
    """See `Client`."""

    def __init__(self, address: str) -> None:
        self._url = f"http://127.0.0.1:{Path(address).read_text()}"

    def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        reply = requests.post(f"{self._url}/{name}", json=arguments, timeout=60)
        body = reply.json()
        if reply.status_code != 200:
            raise ValueError(body["error"])
        return body["result"]

    def small(self, x: int) -> int:
        """See `Client`."""
        return self._call("small", {"x": x})

    def floats(self, n: int) -> list[float]:
        """See `Client`."""
        return self._call("floats", {"n": n})

    def take(self, values: list[float]) -> float:
        """See `Client`."""
        return self._call("take", {"values": values})

    def fail(self, message: str) -> None:
        """See `Client`."""
        self._call("fail", {"message": message})

    def array(self, nbytes: int, stamp: int) -> Any:
        """Not supported: JSON has no binary arrays."""
        raise TypeError(f"no array of {nbytes} bytes here (stamp {stamp})")

    def close(self) -> None:
        """See `Client`."""
        return


def connect(address: str) -> PlainClient:
    """Connect."""
    return PlainClient(address)
