"""MCP servers for the tools of this process, over pipes and HTTP, and clients' configurations."""

from typing import TYPE_CHECKING

from seer.mcp._clients import CLIENTS, http_config, stdio_config
from seer.mcp._open import open_http_server, open_stdio_server
from seer.mcp._stdio import StdioServer

if TYPE_CHECKING:
    from seer.mcp._http import HttpServer

__all__ = [
    "CLIENTS",
    "HttpServer",
    "StdioServer",
    "http_config",
    "open_http_server",
    "open_stdio_server",
    "stdio_config",
]


def __getattr__(name: str) -> object:
    # The web server is imported on first use.
    if name == "HttpServer":
        from seer.mcp._http import HttpServer

        return HttpServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
