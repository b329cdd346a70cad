"""Which served interfaces stand behind the tool servers that a run uses.

A tool server's configuration is plain data, as agents' own configurations have it, so it cannot
carry the interface along. The record of a run asks here.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seer.environment.serving._served import Caller, Served
from seer.rpc.interface._schema import Schema


class BehindDoor:
    """An interface as a door to it sees it; knows the caller that the door is."""

    def __init__(self, gate: Served) -> None:
        self.gate = gate
        self.caller = ""
        """What the gate's record calls everything that comes through the door."""

    @property
    def schema(self) -> Schema:
        """All its functions."""
        return self.gate.schema

    async def open_caller(self, label: str) -> Caller:
        """Make the door's caller."""
        made = await self.gate.open_caller(label)
        self.caller = made.name
        return made


_doors: "weakref.WeakValueDictionary[tuple[str, ...], Served]" = weakref.WeakValueDictionary()
_callers: dict[tuple[str, ...], str] = {}


def note_door(mcp_config: Mapping[str, Mapping[str, Any]], behind: BehindDoor) -> None:
    """Remember what stands behind a tool server, for as long as the interface is served."""
    for key in [known for known in _callers if known not in _doors]:
        del _callers[key]
    for entry in mcp_config.values():
        key = _key([entry["command"], *entry["args"]])
        _doors[key] = behind.gate
        _callers[key] = behind.caller


def gates_behind(commands: Iterable[Sequence[str]]) -> list[tuple[Served, str]]:
    """The interfaces behind tool servers that are started with these commands.

    Returns:
        Each with the name of the caller that the tool server is at its gate.
    """
    keys = [_key(command) for command in commands]
    return [(gate, _callers[key]) for key in keys if (gate := _doors.get(key)) is not None]


def _key(command: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(str, command))
