"""One import of the MCP SDK at a time.

Its modules import each other in a circle, so two threads that begin at different ends of it can
each see a half-made module of the other. And it takes more than a second, so it is imported late.
"""

import importlib
import threading

_lock = threading.Lock()


def load_sdk() -> None:
    """Import the MCP SDK whole; later imports of its parts find it. Safe from any thread."""
    with _lock:
        importlib.import_module("mcp")
        importlib.import_module("mcp.server")
