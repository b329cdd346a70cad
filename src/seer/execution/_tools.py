"""Where a session's tool server comes from.

Tool servers are built on sessions, so a session must not know them. It finds them as programs
find plug-ins: by name, when first asked.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from seer.execution._session import Session

_SERVER_PACKAGE = "seer.mcp"
RECORDED = "SEER_RECORDED_TOOLS"
"""Marks a tool server that is not there: its tools are answered from the record of a run."""


class ToolDoor(Protocol):
    """An open way for agents into a session."""

    @property
    def mcp_config(self) -> dict[str, dict[str, Any]]:
        """How agents start the tool server."""
        ...

    async def close(self) -> None:
        """Close the way, and every connection that came through it."""
        ...


class _ToolServers(Protocol):
    async def open_session_door(self, session: Session) -> ToolDoor: ...


def recorded_tools(name: str) -> dict[str, dict[str, Any]]:
    """The tool server of a session whose machine is replayed; `run_agent` knows what it means."""
    words = f"the tools of {name!r} are replayed from a record, which only run_agent can do"
    args = ["-c", f"raise SystemExit({words!r})"]
    env = {RECORDED: "1"}
    return {name: {"type": "stdio", "command": sys.executable, "args": args, "env": env}}


async def open_tool_door(session: Session) -> ToolDoor:
    """Open a way for agents into `session`."""
    servers = cast("_ToolServers", importlib.import_module(_SERVER_PACKAGE))
    return await servers.open_session_door(session)
