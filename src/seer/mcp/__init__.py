"""The MCP servers that agents work through: sessions and exposed functions as typed tools."""

from seer.mcp._door import Door
from seer.mcp._open import open_session_door

__all__ = ["Door", "open_session_door"]
