"""Open doors for agents into what this process has."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Awaitable
from typing import Protocol, cast

from seer.execution import CliSession, LocalSession, PrivateFolder, Session
from seer.mcp._door import Door
from seer.mcp._python_tools import python_tools
from seer.mcp._shell_tools import shell_tools
from seer.mcp._streams import Pipes
from seer.mcp._tools import Tool, ToolSet


class _Server(Protocol):
    """The module that imports the MCP SDK, which takes more than a second."""

    def serve_client(self, tools: ToolSet, pipes: Pipes) -> Awaitable[None]: ...


async def open_session_door(session: Session) -> Door:
    """Open a door into a session.

    The door's `config` is what agents' configurations take; whoever opens the door closes it.
    """
    return await open_door(
        ToolSet(name=session.name, tools=_tools_of(session), instructions=session.model_info_text)
    )


async def open_door(tools: ToolSet) -> Door:
    """Open a door to a set of tools."""
    # Started now, the import is over before most agents have come up.
    threading.Thread(target=_load_server, name="seer-mcp-import", daemon=True).start()

    async def serve(pipes: Pipes) -> None:
        server = await asyncio.to_thread(_load_server)
        await server.serve_client(tools, pipes)

    return await Door.open(tools.name, PrivateFolder("door"), serve)


def _load_server() -> _Server:
    return cast("_Server", importlib.import_module("seer.mcp._server"))


def _tools_of(session: Session) -> list[Tool]:
    if isinstance(session, CliSession):
        return shell_tools(session)
    if isinstance(session, LocalSession):
        return python_tools(session)
    raise TypeError(f"no tools are known for a session of kind {session.kind!r}")
