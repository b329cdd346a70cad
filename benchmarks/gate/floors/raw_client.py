# pyright: basic
# The libraries used here carry no types.
"""Client of the raw floor: blocking socket, msgpack."""

from __future__ import annotations

import msgpack

from benchmarks.gate.floors._wire import WireClient


def connect(address: str) -> WireClient:
    """Connect."""
    return WireClient(address, msgpack.packb, msgpack.unpackb)
