"""An MCP server's configuration in the format of each coding agent, for stdio and for HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

CLIENTS: Mapping[str, str] = {
    "claude": "Claude Code",
    "codex": "Codex",
    "cursor": "Cursor",
    "gemini": "Gemini CLI",
    "vscode": "VS Code",
}
"""The clients whose format is known: the name on the command line, and the full name."""

TOKEN_VARIABLE = "SEER_MCP_TOKEN"
"""Holds the token of a server over HTTP; clients read it, so that their files hold no secret."""

_BEARER = {
    "claude": f"Bearer ${{{TOKEN_VARIABLE}}}",
    "cursor": f"Bearer ${{env:{TOKEN_VARIABLE}}}",
    "gemini": f"Bearer ${{{TOKEN_VARIABLE}}}",
    "vscode": "Bearer ${input:seer-mcp-token}",
}


def stdio_config(client: str, name: str, command: str, args: Sequence[str]) -> str:
    """The text of a configuration with which `client` starts a server as its own process."""
    program = {"command": command, "args": list(args)}
    if client == "codex":
        return _codex(name, program)
    kind = {"type": "stdio"} if client in ("claude", "vscode") else {}
    return _json(client, name, {**kind, **program})


def http_config(client: str, name: str, url: str) -> str:
    """The text of a configuration with which `client` reaches a server over HTTP."""
    if client == "codex":
        return _codex(name, {"url": url, "bearer_token_env_var": TOKEN_VARIABLE})
    headers = {"headers": {"Authorization": _BEARER[client]}}
    if client == "gemini":
        return _json(client, name, {"httpUrl": url, **headers})
    kind = {"type": "http"} if client in ("claude", "vscode") else {}
    entry = {**kind, "url": url, **headers}
    if client != "vscode":
        return _json(client, name, entry)
    # VS Code asks for the token once and keeps it in the system's key ring.
    asked = {
        "type": "promptString",
        "id": "seer-mcp-token",
        "description": f"{TOKEN_VARIABLE}, as `seer mcp --http` printed it",
        "password": True,
    }
    return _json(client, name, entry, inputs=[asked])


def _json(client: str, name: str, entry: Mapping[str, Any], **beside: Any) -> str:
    servers = "servers" if client == "vscode" else "mcpServers"
    return json.dumps({servers: {name: entry}, **beside}, indent=2)


def _codex(name: str, entry: Mapping[str, Any]) -> str:
    # A JSON string or list is also a TOML value.
    lines = [f"[mcp_servers.{json.dumps(name)}]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
    # By default, Codex continues without a server that is not ready in time.
    return "\n".join([*lines, "required = true", "startup_timeout_sec = 120"])
