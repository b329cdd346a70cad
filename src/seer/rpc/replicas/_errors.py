"""Errors on their way from a copy to the front: what callers get, and what the record keeps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_WHOLE = "whole_traceback"


def with_traceback(text: bytes, traceback: str) -> bytes:
    """The text of an error with the whole traceback in it, which only the front may see."""
    found: dict[str, Any] = json.loads(text)
    found["error"][_WHOLE] = traceback
    return json.dumps(found).encode()


def split_error(text: bytes | memoryview) -> tuple[bytes, str, str]:
    """An error that a copy sent.

    Returns:
        The text for the caller; what the record calls the error (the class that a function raised,
        or Seer's own); and the whole traceback, empty where the copy sent none.
    """
    text = bytes(text)
    try:
        found: dict[str, Any] = json.loads(text)
        error: dict[str, Any] = found["error"]
        name = str(error.get("name") or error["type"])
        traceback = str(error.pop(_WHOLE, ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return text, "GateError", ""
    return json.dumps(found).encode() if traceback else text, name, traceback
