"""Which served interface each MCP server of this process leads to.

The configuration of an MCP server is plain data, so it cannot refer to the interface. The record of
a run looks the interface up here, by the server's command.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seer.environment.serving._served import CallerSocket, Served
from seer.rpc.interface._schema import Schema


class McpCaller:
    """An interface as one MCP server calls it. The server is one caller of its gate."""

    def __init__(self, gate: Served) -> None:
        self.gate = gate
        self.caller = ""
        """The caller's name in the gate's record."""

    @property
    def schema(self) -> Schema:
        """All its functions."""
        return self.gate.schema

    async def open_caller(self, label: str) -> CallerSocket:
        """Open the MCP server's caller."""
        made = await self.gate.open_caller(label)
        self.caller = made.name
        return made


_interfaces: "weakref.WeakValueDictionary[tuple[str, ...], Served]" = weakref.WeakValueDictionary()
_callers: dict[tuple[str, ...], str] = {}


def remember_mcp_server(mcp_config: Mapping[str, Mapping[str, Any]], caller: McpCaller) -> None:
    """Remember which interface an MCP server leads to, while the interface is served."""
    for key in [known for known in _callers if known not in _interfaces]:
        del _callers[key]
    for entry in mcp_config.values():
        key = _key([entry["command"], *entry["args"]])
        _interfaces[key] = caller.gate
        _callers[key] = caller.caller


def gates_behind(commands: Iterable[Sequence[str]]) -> list[tuple[Served, str]]:
    """The interfaces behind the MCP servers that these commands start.

    Returns:
        Each interface with the name of the server's caller at its gate.
    """
    keys = [_key(command) for command in commands]
    return [(gate, _callers[key]) for key in keys if (gate := _interfaces.get(key)) is not None]


def _key(command: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(str, command))
