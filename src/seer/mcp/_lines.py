"""Parses one line from a client as JSON-RPC: a message, or the answer that refuses it.

The SDK drops a line that it cannot parse, and then the client waits forever. This module knows
nothing about MCP; the SDK checks methods and their parameters.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escape that may be a lone surrogate, which cannot be forwarded."""


@dataclass(frozen=True)
class Refusal:
    """Why a line is not a message."""

    code: int
    reason: str
    request_id: int | str | None = None
    """The id in the line, if it can be read."""

    def answer(self) -> bytes:
        """The JSON-RPC error, as a line without its end."""
        error = {"code": self.code, "message": self.reason}
        return json.dumps({"jsonrpc": "2.0", "id": self.request_id, "error": error}).encode()


TOO_LONG = Refusal(INVALID_REQUEST, "the line is too long; write large data to a file instead")


def read_line(line: bytes) -> dict[str, Any] | Refusal:
    """The message in one line, or why there is none."""
    try:
        value: object = json.loads(line)
        if _HALF_CHARACTER.search(line):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return Refusal(PARSE_ERROR, f"not JSON: {type(error).__name__}: {str(error)[:200]}")
    if isinstance(value, list):
        return Refusal(INVALID_REQUEST, "batches are not part of MCP; send one message a line")
    if not isinstance(value, dict):
        return Refusal(INVALID_REQUEST, f"a message is an object, not {type(value).__name__}")
    message = cast("dict[str, Any]", value)
    return _problem(message) or message


def _problem(message: dict[str, Any]) -> Refusal | None:
    given = message.get("id")
    known = isinstance(given, int | str) and not isinstance(given, bool)
    request_id = given if known else None
    if "id" in message and not known and "error" not in message:
        return Refusal(INVALID_REQUEST, f"id={given!r:.100}: an id is a string or a whole number")
    if message.get("jsonrpc") != "2.0":
        return Refusal(INVALID_REQUEST, 'the member "jsonrpc" must be "2.0"', request_id)
    if "method" not in message:
        if "result" in message or "error" in message:
            return None
        return Refusal(INVALID_REQUEST, "there is no method, no result and no error", request_id)
    if not isinstance(message["method"], str):
        return Refusal(INVALID_REQUEST, "a method is a string", request_id)
    if not isinstance(message.get("params", {}), dict | None):
        return Refusal(INVALID_PARAMS, "params are an object, given by name", request_id)
    return None
