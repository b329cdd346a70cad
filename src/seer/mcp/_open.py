"""Opens MCP servers for the tools of this process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from seer._sync import on_loop
from seer.execution._folders import PrivateFolder
from seer.mcp._closing import ClosableServer
from seer.mcp._lines import Pipes
from seer.mcp._sdk import load_server
from seer.mcp._stdio import StdioServer
from seer.rpc.interface._schema import Schema
from seer.tools._sets import Closer, ServedInterface, interface_tools, loading_tools
from seer.tools._tool import ToolSource

if TYPE_CHECKING:
    from seer.mcp._http import HttpServer

S = TypeVar("S", bound=ClosableServer)


async def open_interface_server(served: ServedInterface) -> StdioServer:
    """Open a server with an interface's functions as tools; the caller closes it.

    All its clients are one caller of the gate, so they share a budget.

    Raises:
        GateError: The gate refuses to make a caller.
    """
    tools, close = await interface_tools(served)
    return await _closing(open_stdio_server(tools), close)


async def open_loading_server(
    name: str,
    known: Schema | None,
    loading: Awaitable[ServedInterface],
    *,
    list_timeout: float = 20.0,
) -> StdioServer:
    """Open a server for an interface that is still being loaded; the caller closes it.

    Args:
        name: What agents call the server.
        known: The interface's schema when it was last served; it describes the tools until the
            interface is loaded.
        loading: Its result is the interface.
        list_timeout: As for `LoadingTools`.
    """

    async def open_on_loop() -> StdioServer:
        tools, close = loading_tools(name, known, loading, list_timeout=list_timeout)
        return await _closing(open_stdio_server(tools), close)

    return await on_loop(open_on_loop())


async def open_http_server(
    name: str, known: Schema | None, loading: Awaitable[ServedInterface], *, port: int, token: str
) -> HttpServer:
    """Open a server over HTTP for an interface that is still being loaded.

    Args:
        name: What agents call the server.
        known: The interface's schema when it was last served; it describes the tools until the
            interface is loaded.
        loading: Its result is the interface.
        port: Where to listen on loopback; 0 picks a free port.
        token: The token that every request must carry.

    Raises:
        ConfigError: The port is in use.
    """
    from seer.mcp._http import HttpServer

    async def open_on_loop() -> HttpServer:
        tools, close = loading_tools(name, known, loading)
        return await _closing(HttpServer.open(tools, port=port, token=token), close)

    return await on_loop(open_on_loop())


async def _closing(opening: Awaitable[S], close: Closer) -> S:
    """Open the server and let it close its tools; close them now if it cannot be opened."""
    try:
        server = await opening
    except BaseException:
        await close()
        raise
    server.on_close(close)
    return server


async def open_stdio_server(tools: ToolSource) -> StdioServer:
    """Open a server for these tools, such as a `seer.tools.ToolSet`; the caller closes it.

    The tools run on the event loop that this is called on.
    """
    # The import starts now, so it ends before most agents have started. The thread is not a daemon:
    # Python ends those wherever they are, and aborts if that is in the SDK's Rust code.
    threading.Thread(target=load_server, name="seer-mcp-import", daemon=False).start()

    async def serve(pipes: Pipes) -> None:
        await asyncio.to_thread(load_server)
        from seer.mcp._server import serve_client

        await serve_client(tools, pipes)

    server = await StdioServer.open(tools.name, PrivateFolder("mcp"), serve)
    for entry in server.mcp_config.values():
        key = _key(entry["command"], entry["args"])
        _local[key] = tools
        server.on_close(partial(_forget, key))
    return server


_local: dict[tuple[str, ...], ToolSource] = {}
"""The tools behind each open server of this process, by the command that starts its relay."""
# A forked process reaches its parent's tools over the parent's servers.
os.register_at_fork(after_in_child=_local.clear)


def local_tools(command: str, args: Sequence[str]) -> ToolSource | None:
    """The tools that a client with this configuration reaches, if they are in this process."""
    return _local.get(_key(command, args))


def _key(command: str, args: Sequence[str]) -> tuple[str, ...]:
    return (command, *args)


async def _forget(key: tuple[str, ...]) -> None:
    _local.pop(key, None)
