"""The MCP servers that agents work through: sessions and exposed functions as typed tools."""

from seer.mcp._door import Door
from seer.mcp._open import (
    ServedInterface,
    open_interface_door,
    open_loading_door,
    open_session_door,
)
from seer.mcp._sdk import load_sdk

__all__ = [
    "Door",
    "ServedInterface",
    "load_sdk",
    "open_interface_door",
    "open_loading_door",
    "open_session_door",
]
