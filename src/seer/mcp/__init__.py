"""MCP servers for the tools of this process, over pipes and HTTP, and clients' configurations."""

from typing import TYPE_CHECKING

from seer.mcp._clients import CLIENTS, http_config, stdio_config
from seer.mcp._door import Door
from seer.mcp._open import open_door, open_http_door

if TYPE_CHECKING:
    from seer.mcp._http import HttpDoor

__all__ = [
    "CLIENTS",
    "Door",
    "HttpDoor",
    "http_config",
    "open_door",
    "open_http_door",
    "stdio_config",
]


def __getattr__(name: str) -> object:
    # The web server is imported on first use.
    if name == "HttpDoor":
        from seer.mcp._http import HttpDoor

        return HttpDoor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
