"""The MCP servers that agents work through: sessions and exposed functions as typed tools."""

from seer.mcp._door import Door
from seer.mcp._open import ServedInterface, open_interface_door, open_session_door

__all__ = ["Door", "ServedInterface", "open_interface_door", "open_session_door"]
