"""Client of Seer's own contestant: the gate's client that is copied into agents' jails."""

from __future__ import annotations

from typing import Any

import _seer_gate  # pyright: ignore[reportMissingImports]

_connect: Any = _seer_gate.connect


class OurClient:
    """Calls through the gate as a generated library does."""

    def __init__(self, address: str) -> None:
        """Connect at once, so that a missing server raises here."""
        self._gate: Any = _connect("work", f"path:{address}")
        self._gate.health()

    def small(self, x: int) -> int:
        """See `Client`."""
        return self._gate.call("small", (x,), {})

    def floats(self, n: int) -> list[float]:
        """See `Client`."""
        return self._gate.call("floats", (n,), {})

    def take(self, values: list[float]) -> float:
        """See `Client`."""
        return self._gate.call("take", (values,), {})

    def array(self, nbytes: int, stamp: int) -> Any:
        """See `Client`."""
        return self._gate.call("array", (nbytes, stamp), {})

    def fail(self, message: str) -> None:
        """See `Client`."""
        self._gate.call("fail", (message,), {})

    def close(self) -> None:
        """See `Client`."""
        self._gate.close()


def connect(address: str) -> OurClient:
    """Connect."""
    return OurClient(address)
