"""httpx over a Unix socket, one kept connection."""

from __future__ import annotations

from typing import Any

import httpx


class HttpxClient:
    """See `Client`."""

    def __init__(self, address: str) -> None:
        transport = httpx.HTTPTransport(uds=address)
        self._http = httpx.Client(transport=transport, base_url="http://bench", timeout=60)

    def _post(self, name: str, arguments: dict[str, Any]) -> httpx.Response:
        reply = self._http.post(f"/{name}", json=arguments)
        if reply.status_code != 200:
            raise ValueError(reply.json()["error"])
        return reply

    def small(self, x: int) -> int:
        """See `Client`."""
        return self._post("small", {"x": x}).json()

    def floats(self, n: int) -> list[float]:
        """See `Client`."""
        return self._post("floats", {"n": n}).json()

    def take(self, values: list[float]) -> float:
        """See `Client`."""
        return self._post("take", {"values": values}).json()

    def fail(self, message: str) -> None:
        """See `Client`."""
        self._post("fail", {"message": message})

    def array(self, nbytes: int, stamp: int) -> Any:
        """See `Client`."""
        return self._post("array", {"nbytes": nbytes, "stamp": stamp}).content

    def close(self) -> None:
        """See `Client`."""
        self._http.close()


def connect(address: str) -> HttpxClient:
    """Connect."""
    return HttpxClient(address)
