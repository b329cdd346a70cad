"""The configuration format of each client, according to its documentation."""

import json
import tomllib
from typing import Any

import pytest

from seer.mcp import CLIENTS, http_config, stdio_config

URL = "http://127.0.0.1:8765/mcp"


def read(client: str, text: str) -> dict[str, Any]:
    """The configuration, as the client reads it."""
    return tomllib.loads(text) if client == "codex" else json.loads(text)


STDIO = {
    "claude": {"mcpServers": {"my lab": {"type": "stdio", "command": "/x/seer", "args": ["mcp"]}}},
    "codex": {
        "mcp_servers": {
            "my lab": {
                "command": "/x/seer",
                "args": ["mcp"],
                "required": True,
                "startup_timeout_sec": 120,
            }
        }
    },
    "cursor": {"mcpServers": {"my lab": {"command": "/x/seer", "args": ["mcp"]}}},
    "gemini": {"mcpServers": {"my lab": {"command": "/x/seer", "args": ["mcp"]}}},
    "vscode": {"servers": {"my lab": {"type": "stdio", "command": "/x/seer", "args": ["mcp"]}}},
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_program_is_told_in_the_clients_format(client: str) -> None:
    assert read(client, stdio_config(client, "my lab", "/x/seer", ["mcp"])) == STDIO[client]


def header(value: str) -> dict[str, Any]:
    return {"headers": {"Authorization": value}}


HTTP = {
    "claude": {"type": "http", "url": URL, **header("Bearer ${SEER_MCP_TOKEN}")},
    "codex": {
        "url": URL,
        "bearer_token_env_var": "SEER_MCP_TOKEN",
        "required": True,
        "startup_timeout_sec": 120,
    },
    "cursor": {"url": URL, **header("Bearer ${env:SEER_MCP_TOKEN}")},
    "gemini": {"httpUrl": URL, **header("Bearer ${SEER_MCP_TOKEN}")},
    "vscode": {"type": "http", "url": URL, **header("Bearer ${input:seer-mcp-token}")},
}


@pytest.mark.parametrize("client", CLIENTS)
def test_an_address_is_told_in_the_clients_format_without_the_token(client: str) -> None:
    found = read(client, http_config(client, "lab", URL))
    inputs = found.pop("inputs", None)
    (servers,) = found.values()
    assert servers == {"lab": HTTP[client]}
    if client == "vscode":
        assert [(one["id"], one["type"], one["password"]) for one in inputs] == [
            ("seer-mcp-token", "promptString", True)
        ]
    else:
        assert inputs is None
