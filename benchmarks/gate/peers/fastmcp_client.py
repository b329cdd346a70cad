"""FastMCP's client. The address is a stdio server's command line as JSON."""

from __future__ import annotations

import json
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from benchmarks.gate.peers._mcp_session import McpSession


async def _call(client: Client[StdioTransport], name: str, arguments: dict[str, Any]) -> Any:
    return (await client.call_tool(name, arguments)).data


def connect(address: str) -> McpSession:
    """Start the server and initialize."""
    transport = StdioTransport(**json.loads(address), keep_alive=False)
    return McpSession(lambda: Client(transport), _call)


def fan(command: dict[str, Any]) -> dict[str, float]:
    """Many calls in one session: a stdio server has one client."""
    session = connect(command["address"])
    try:
        return session.fan(command)
    finally:
        session.close()
