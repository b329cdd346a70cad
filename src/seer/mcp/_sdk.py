"""Imports the MCP SDK, and the module that uses it, in one thread at a time.

The SDK's modules import each other in a circle, so two threads that import different ones can each
see a half-initialized module. The import takes more than a second, so it happens late.
"""

import importlib
import threading

_lock = threading.Lock()


def load_sdk() -> None:
    """Import the whole MCP SDK, so that later imports of its parts are safe in any thread."""
    with _lock:
        importlib.import_module("mcp")
        importlib.import_module("mcp.server")


def load_server() -> None:
    """Import `_server`, which serves tools with the SDK. Any thread can call this."""
    load_sdk()
    importlib.import_module("seer.mcp._server")
