"""The tools of a session, and of a served interface."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from seer.execution import CliSession, LocalSession, NotebookSession, Session, open_sessions
from seer.rpc.client import connect
from seer.rpc.interface._schema import Schema
from seer.tools._functions import FunctionTools
from seer.tools._notebook import notebook_tools
from seer.tools._python import python_tools
from seer.tools._shell import shell_tools
from seer.tools._tool import LoadingTools, Tool, ToolFailure, ToolSet
from seer.tools._values import Save
from seer.workspace._gate import GateSocket

Closer = Callable[[], Awaitable[None]]

SPARE = 512 << 20
"""Bytes that must stay free on the disk of this machine when results are saved."""


class ServedInterface(Protocol):
    """A served interface: its functions, and a way to become its caller."""

    @property
    def schema(self) -> Schema:
        """All its functions."""
        ...

    async def open_caller(self, label: str) -> GateSocket:
        """Make a new caller; see `seer.workspace.Gate`."""
        ...


@dataclass(frozen=True, kw_only=True)
class InterfaceTools(ToolSet):
    """The functions of a served interface. Together they are one caller of its gate."""

    gate: ServedInterface
    caller: str
    """The caller's name in the gate's record."""


def session_tools(session: Session) -> ToolSet:
    """The tools of a session."""
    return ToolSet(
        name=session.name, tools=_tools_of(session), instructions=session.model_info_text
    )


async def interface_tools(served: ServedInterface) -> tuple[InterfaceTools, Closer]:
    """The tools of a served interface, which are one caller and share its budget.

    Returns:
        The tools, and a function that closes them.

    Raises:
        GateError: The gate refuses to make a caller.
    """
    schema = served.schema
    socket = await served.open_caller(f"{schema.name}-mcp")
    functions = FunctionTools(schema, connect(schema.name, socket.address), save_for)
    tools = InterfaceTools(
        name=schema.name,
        tools=functions.tools(),
        instructions=schema.doc,
        gate=served,
        caller=socket.name,
    )
    opened = AsyncExitStack()  # the last one is closed first
    opened.push_async_callback(socket.aclose)
    opened.push_async_callback(functions.aclose)
    return tools, opened.aclose


def loading_tools(
    name: str,
    known: Schema | None,
    loading: Awaitable[ServedInterface],
    *,
    list_timeout: float = 20.0,
) -> tuple[LoadingTools, Closer]:
    """The tools of an interface that is still being loaded.

    Args:
        name: What agents call the server.
        known: The interface's schema when it was last served; it describes the tools until the
            interface is loaded.
        loading: Its result is the interface.
        list_timeout: As for `LoadingTools`.

    Returns:
        The tools, and a function that closes them.
    """
    opened = AsyncExitStack()

    async def load() -> ToolSet:
        found, close = await interface_tools(await loading)
        opened.push_async_callback(close)
        return found

    earlier = None
    if known is not None:
        # These only describe the functions; calls wait for the interface itself.
        functions = FunctionTools(known, connect(known.name, ""), save_for).tools()
        earlier = ToolSet(name=name, tools=functions, instructions=known.doc)
    tools = LoadingTools(name, earlier, load(), list_timeout=list_timeout)
    opened.push_async_callback(tools.close)
    return tools, opened.aclose


def save_for(session_id: str) -> Save:
    """A function that keeps files where the agent of this session can open them.

    Without such a session, or in a cli session, it keeps them under `./outputs/results`.

    Only the agent's own session gets the files, because another session may belong to another
    agent.
    """

    async def save(name: str, data: bytes) -> str:
        # Named by its content, so that no server overwrites another's file, and a replay gives
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


def _tools_of(session: Session) -> list[Tool]:
    if isinstance(session, CliSession):
        return shell_tools(session)
    if isinstance(session, NotebookSession):
        return notebook_tools(session)
    if isinstance(session, LocalSession):
        return python_tools(session)
    raise TypeError(f"no tools are known for a session of kind {session.kind!r}")
