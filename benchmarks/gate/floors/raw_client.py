"""Client of the raw floor: blocking socket, msgpack."""

from __future__ import annotations

from benchmarks.gate._msgpack import pack, unpack
from benchmarks.gate.floors._wire import WireClient


def connect(address: str) -> WireClient:
    """Connect."""
    return WireClient(address, pack, unpack)
