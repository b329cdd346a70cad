"""MCP servers for the tools of this process, over pipes and HTTP, and clients' configurations."""

from seer.mcp._clients import CLIENTS, http_config, stdio_config
from seer.mcp._door import Door
from seer.mcp._open import open_http_door

__all__ = [
    "CLIENTS",
    "Door",
    "http_config",
    "open_http_door",
    "stdio_config",
]
