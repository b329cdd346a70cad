"""Which tool call of an agent made a call of the gate.

A gate call names its tool call by a token (`ToolCalls`). Records of older versions of Seer have no
tokens, so their calls are matched by time (`ToolCallTimes`).
"""

import secrets
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

_CLOCKS = 0.05
"""Seconds by which the times of two processes may disagree."""


class ToolCalls:
    """The tool calls of one run, by the tokens with which calls of the gate name them."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def token(self, tool_call: str) -> str:
        """A new token for the tool call of this id."""
        # Random, because ids repeat: some vendors count from 0 in every answer, or in every run.
        token = secrets.token_hex(8)
        self._ids[token] = tool_call
        return token

    def named(self, token: str) -> str:
        """The id of the tool call with this token; empty if this run has none.

        A token proves nothing: the agent's code can use any token that it has seen.
        """
        return self._ids.get(token, "")


class ToolCallTimes:
    """The tool calls of a whole run, by the times at which they ran.

    Args:
        events: Its events in their JSON form.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        began: dict[str, tuple[float, str]] = {}
        ended: dict[str, float] = {}
        for event in events:
            if event.get("type") == "tool_call":
                began[str(event.get("id"))] = _time(event), str(event.get("name"))
            elif event.get("type") == "tool_result":
                ended[str(event.get("id"))] = _time(event)
        self._tools = sorted(
            (start, ended.get(key, float("inf")), key, name) for key, (start, name) in began.items()
        )
        self._open_until: list[float] = []
        """For each tool call: the latest end among it and the calls before it."""
        latest = 0.0
        for _, end, _, _ in self._tools:
            latest = max(latest, end)
            self._open_until.append(latest)

    def around(self, function: str, started: float) -> str:
        """The id of the tool call during which a gate call began; empty if there is none.

        If several fit, a tool with the function's own name wins, then the one that began last.
        """
        # The tolerance is used only if no tool call fits exactly, because calls can follow each
        # other without a pause.
        fits = self._at(started, 0.0) or self._at(started, _CLOCKS)
        named = [key for key, name in fits if name.rpartition("__")[2] == function]
        return next(iter([*named, *(key for key, _ in fits)]), "")

    def _at(self, time: float, tolerance: float) -> list[tuple[str, str]]:
        """The ids and names of the tool calls at that time, the last one first."""
        found: list[tuple[str, str]] = []
        index = bisect_right(self._tools, (time + tolerance, float("inf"))) - 1
        while index >= 0 and self._open_until[index] >= time - tolerance:
            _, end, key, name = self._tools[index]
            if end >= time - tolerance:
                found.append((key, name))
            index -= 1
        return found


def _time(event: Mapping[str, Any]) -> float:
    return float(event.get("time") or 0.0)
