"""Imports the MCP SDK, and the module that uses it, in one thread at a time.

The SDK's modules import each other in a circle, so two threads that import different ones can each
see a half-initialized module. The import takes more than a second, so it happens late.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, cast

from seer.mcp._streams import Pipes
from seer.tools._tool import ToolSource

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_lock = threading.Lock()


class Server(Protocol):
    """The module `_server`, which imports the SDK."""

    def serve_client(self, source: ToolSource, pipes: Pipes) -> Awaitable[None]: ...

    def http_application(
        self, source: ToolSource, *, body_limit: int, max_sessions: int
    ) -> AbstractAsyncContextManager[ASGIApp]: ...


def load_sdk() -> None:
    """Import the whole MCP SDK, so that later imports of its parts are safe in any thread."""
    with _lock:
        importlib.import_module("mcp")
        importlib.import_module("mcp.server")


def load_server() -> Server:
    """The module that serves tools with the SDK. Any thread can call this."""
    load_sdk()
    return cast("Server", importlib.import_module("seer.mcp._server"))
