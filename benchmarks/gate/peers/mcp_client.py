"""The official SDK's client. The address is a stdio server's command line as JSON."""

from __future__ import annotations

import json
from typing import Any

from mcp import Client, StdioServerParameters

from benchmarks.gate.peers._mcp_session import McpSession


async def _call(client: Client, name: str, arguments: dict[str, Any]) -> Any:
    result = await client.call_tool(name, arguments)
    if result.is_error:
        raise ValueError(str(result.content))
    structured: Any = result.structured_content
    return structured["result"]


def connect(address: str) -> McpSession:
    """Start the server and initialize."""
    parameters = StdioServerParameters(**json.loads(address))
    return McpSession(lambda: Client(parameters), _call)


def fan(command: dict[str, Any]) -> dict[str, float]:
    """Many calls in one session: a stdio server has one client."""
    session = connect(command["address"])
    try:
        return session.fan(command)
    finally:
        session.close()
