"""The three methods of the public API that need a package above their own.

`Session.mcp_config`, `ScopedSandbox.serve(expose_as="mcp")` and `Sandbox.jupyter_url` are part of
the public API of their packages, but `mcp` is above `execution`, and `execution` is above
`environment`. Only this module imports upward. It imports on first use, because the packages above
are slow to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from seer.environment import Sandbox
    from seer.execution import NotebookSession, Session
    from seer.tools._sets import ServedInterface


class OpenServer(Protocol):
    """An open MCP server."""

    @property
    def mcp_config(self) -> dict[str, dict[str, Any]]:
        """How agents start it: `{name: {"type", "command", "args", "env"}}`."""
        ...

    async def close(self) -> None:
        """Close the server and every connection to it."""
        ...


async def open_session_server(session: Session) -> OpenServer:
    """Open an MCP server with a session's tools."""
    from seer.mcp import open_stdio_server
    from seer.tools._sets import session_tools

    return await open_stdio_server(session_tools(session))


async def open_interface_server(served: ServedInterface) -> OpenServer:
    """Open an MCP server with the functions of a served interface."""
    from seer.mcp import _open

    return await _open.open_interface_server(served)


def open_notebook(sandbox: Sandbox) -> NotebookSession:
    """Open a notebook session in a sandbox."""
    from seer.execution import create_notebook_session

    return create_notebook_session(sandbox)
