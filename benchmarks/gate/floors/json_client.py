"""Client of the two jailed floors: blocking socket, JSON."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.gate.floors._wire import WireClient

_encode = json.JSONEncoder(separators=(",", ":")).encode


def _pack(value: Any) -> bytes:
    return _encode(value).encode()


def connect(address: str) -> WireClient:
    """Connect."""
    return WireClient(address, _pack, json.loads)
