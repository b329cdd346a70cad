"""MCP servers for the tools of this process, over pipes and HTTP, and clients' configurations."""

from seer.mcp._clients import CLIENTS, TOKEN_VARIABLE, http_config, stdio_config
from seer.mcp._door import Door
from seer.mcp._open import (
    open_http_door,
    open_interface_door,
    open_loading_door,
    open_session_door,
)
from seer.mcp._sdk import load_sdk

__all__ = [
    "CLIENTS",
    "TOKEN_VARIABLE",
    "Door",
    "http_config",
    "load_sdk",
    "open_http_door",
    "open_interface_door",
    "open_loading_door",
    "open_session_door",
    "stdio_config",
]
