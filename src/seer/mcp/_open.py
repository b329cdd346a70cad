"""Open MCP servers for the tools of this process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from seer._sync import on_loop
from seer.execution import Session
from seer.execution._folders import PrivateFolder
from seer.mcp._door import Door
from seer.mcp._sdk import load_server
from seer.mcp._streams import Pipes
from seer.rpc.interface._schema import Schema
from seer.tools._sets import ServedInterface, interface_tools, loading_tools, session_tools
from seer.tools._tool import ToolSource

if TYPE_CHECKING:
    from seer.mcp._http import HttpDoor


async def open_session_door(session: Session) -> Door:
    """Open a server with a session's tools; the caller closes it.

    Its `mcp_config` goes into agents' own configurations.
    """
    return await open_door(session_tools(session))


async def open_interface_door(served: ServedInterface) -> Door:
    """Open a server with an interface's functions as tools; the caller closes it.

    All its clients are one caller of the gate: they share its budget.

    Raises:
        GateError: The gate gives no caller.
    """
    tools, closers = await interface_tools(served)
    door = await open_door(tools)
    for closer in closers:
        door.on_close(closer)
    return door


async def open_loading_door(
    name: str,
    known: Schema | None,
    loading: Awaitable[ServedInterface],
    *,
    list_timeout: float = 20.0,
) -> Door:
    """Open a server for an interface that is still being loaded; the caller closes it.

    Args:
        name: What agents call the server.
        known: The interface's schema when it was last served, to list its tools by meanwhile.
        loading: Gives the interface.
        list_timeout: As for `LoadingTools`.
    """

    async def open_on_loop() -> Door:
        tools, close = loading_tools(name, known, loading, list_timeout=list_timeout)
        door = await open_door(tools)
        door.on_close(close)
        return door

    return await on_loop(open_on_loop())


async def open_http_door(
    name: str, known: Schema | None, loading: Awaitable[ServedInterface], *, port: int, token: str
) -> HttpDoor:
    """Open a server over HTTP for an interface that is still being loaded.

    Args:
        name: What agents call the server.
        known: The interface's schema when it was last served, to list its tools by meanwhile.
        loading: Gives the interface.
        port: Where to listen on loopback; 0 picks a free port.
        token: What every request must carry.

    Raises:
        ConfigError: The port is in use.
    """
    from seer.mcp._http import HttpDoor

    async def open_on_loop() -> HttpDoor:
        tools, close = loading_tools(name, known, loading)
        try:
            door = await HttpDoor.open(tools, port=port, token=token)
        except BaseException:
            await close()
            raise
        door.on_close(close)
        return door

    return await on_loop(open_on_loop())


async def open_door(tools: ToolSource) -> Door:
    """Open a server for these tools, such as a `seer.tools.ToolSet`; the caller closes it.

    The tools run on the event loop that this is called on.
    """
    # Started now, the import is over before most agents have come up.
    threading.Thread(target=load_server, name="seer-mcp-import", daemon=True).start()

    async def serve(pipes: Pipes) -> None:
        server = await asyncio.to_thread(load_server)
        await server.serve_client(tools, pipes)

    door = await Door.open(tools.name, PrivateFolder("door"), serve)
    for entry in door.mcp_config.values():
        key = _key(entry["command"], entry["args"])
        _local[key] = tools
        door.on_close(partial(_forget, key))
    return door


_local: dict[tuple[str, ...], ToolSource] = {}
"""The tools behind each open server of this process, by the command that starts its relay."""
# A forked process reaches its parent's tools over the parent's servers.
os.register_at_fork(after_in_child=_local.clear)


def local_tools(command: str, args: Sequence[str]) -> ToolSource | None:
    """The tools that a client with this configuration reaches, where they are in this process."""
    return _local.get(_key(command, args))


def _key(command: str, args: Sequence[str]) -> tuple[str, ...]:
    return (command, *args)


async def _forget(key: tuple[str, ...]) -> None:
    _local.pop(key, None)
