"""Open doors for agents into what this process has."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from seer.execution import (
    CliSession,
    LocalSession,
    NotebookSession,
    PrivateFolder,
    Session,
    open_sessions,
)
from seer.mcp._door import Door
from seer.mcp._function_tools import FunctionTools
from seer.mcp._notebook_tools import notebook_tools
from seer.mcp._python_tools import python_tools
from seer.mcp._sdk import load_server
from seer.mcp._shell_tools import shell_tools
from seer.mcp._streams import Pipes
from seer.mcp._tools import LoadingTools, Tool, ToolFailure, ToolSet, ToolSource
from seer.mcp._values import Save
from seer.rpc.client import connect
from seer.rpc.interface._schema import Schema
from seer.workspace import Gate

if TYPE_CHECKING:
    from seer.mcp._http import HttpDoor

Closer = Callable[[], Awaitable[None]]

SPARE = 512 << 20
"""Bytes that saved results leave free on the disk of this machine."""


class ServedInterface(Gate, Protocol):
    """A served interface: what it offers, and a way to become its caller."""

    @property
    def schema(self) -> Schema:
        """All its functions."""
        ...


async def open_session_door(session: Session) -> Door:
    """Open a door into a session.

    The door's `mcp_config` is what agents' configurations take; whoever opens the door closes it.
    """
    return await open_door(
        ToolSet(name=session.name, tools=_tools_of(session), instructions=session.model_info_text)
    )


async def open_interface_door(served: ServedInterface) -> Door:
    """Open a door to an interface's functions, as tools; whoever opens the door closes it.

    All clients that come through one door are one caller of the gate: they share its budget.

    Raises:
        GateError: The gate gives no caller.
    """
    closers: list[Closer] = []
    door = await open_door(await _function_tools(served, closers))
    for closer in closers:
        door.on_close(closer)
    return door


async def open_loading_door(
    name: str, known: Schema | None, loading: Awaitable[ServedInterface]
) -> Door:
    """Open a door to an interface that is still being loaded; whoever opens the door closes it.

    Args:
        name: What agents call the server.
        known: The interface's schema when it was last served, to list its tools by meanwhile.
        loading: Gives the interface.
    """
    tools, close = _loading_tools(name, known, loading)
    door = await open_door(tools)
    door.on_close(close)
    return door


async def open_http_door(
    name: str, known: Schema | None, loading: Awaitable[ServedInterface], *, port: int, token: str
) -> HttpDoor:
    """Open a door over HTTP to an interface that is still being loaded.

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

    tools, close = _loading_tools(name, known, loading)
    try:
        door = await HttpDoor.open(tools, port=port, token=token)
    except BaseException:
        await close()
        raise
    door.on_close(close)
    return door


def _loading_tools(
    name: str, known: Schema | None, loading: Awaitable[ServedInterface]
) -> tuple[LoadingTools, Closer]:
    """The tools of an interface that is still being loaded, and what closes them."""
    closers: list[Closer] = []

    async def load() -> ToolSet:
        return await _function_tools(await loading, closers)

    async def close() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for closer in closers:
            await closer()

    earlier = None
    if known is not None:
        # For their descriptions alone: calls wait for the interface itself.
        tools = FunctionTools(known, connect(known.name, ""), save_for).tools()
        earlier = ToolSet(name=name, tools=tools, instructions=known.doc)
    task = asyncio.create_task(load())
    # Where it fails, those who wait for it are told.
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return LoadingTools(name, earlier, task), close


async def _function_tools(served: ServedInterface, closers: list[Closer]) -> ToolSet:
    """The tools of an interface, and what is to be closed with them, in this order."""
    schema = served.schema
    socket = await served.open_caller(f"{schema.name}-mcp")
    functions = FunctionTools(schema, connect(schema.name, socket.address), save_for)
    closers += [functions.aclose, socket.aclose]
    return ToolSet(name=schema.name, tools=functions.tools(), instructions=schema.doc)


def save_for(session_id: str) -> Save:
    """Keep files where the agent of this session can open them, or at least the person.

    A session that is open here, but is not the agent's own, gets nothing: it may be another's.
    """

    async def save(name: str, data: bytes) -> str:
        # Named by what it holds, so that no server overwrites another's file, and a replay gives
        # the same answer.
        named = f"{hashlib.sha256(data).hexdigest()[:12]}-{name}"
        for session in open_sessions():
            if session.session_id == session_id and session.kind != "cli":
                await session.awrite_file(f"results/{named}", data)
                return f"{f'results/{named}'!r} in the workspace"
        folder = (Path("outputs") / "results").absolute()
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free - len(data) < SPARE:
            raise ToolFailure(
                f"the result of {len(data):,} bytes is not saved: less than {SPARE >> 20} MiB "
                "would be free on the disk of the machine that serves this tool"
            )
        await asyncio.to_thread((folder / named).write_bytes, data)
        return str(folder / named)

    return save


async def open_door(tools: ToolSource) -> Door:
    """Open a door to a server's tools."""
    # Started now, the import is over before most agents have come up.
    threading.Thread(target=load_server, name="seer-mcp-import", daemon=True).start()

    async def serve(pipes: Pipes) -> None:
        server = await asyncio.to_thread(load_server)
        await server.serve_client(tools, pipes)

    return await Door.open(tools.name, PrivateFolder("door"), serve)


def _tools_of(session: Session) -> list[Tool]:
    if isinstance(session, CliSession):
        return shell_tools(session)
    if isinstance(session, NotebookSession):
        return notebook_tools(session)
    if isinstance(session, LocalSession):
        return python_tools(session)
    raise TypeError(f"no tools are known for a session of kind {session.kind!r}")
