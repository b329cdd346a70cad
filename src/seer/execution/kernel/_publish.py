"""Adds what a kernel publishes while a cell runs to the cell's output, and checks every type."""

import json
from typing import cast

from seer.execution._capture import Capture
from seer.execution._result import ExecutionError
from seer.execution._transcript import tidy
from seer.execution.kernel._messages import Message

_MAX_FORMS = 20
_MAX_NAME = 200
"""Characters of a form's or a display's name."""
_MAX_FRAMES = 100
_MAX_TRACEBACK = 100_000
_MAX_MESSAGE = 10_000


def publish(message: Message, capture: Capture) -> None:
    """Add one message to the output; a message that breaks the protocol is ignored."""
    content = message.content
    match message.kind:
        case "stream":
            text = content.get("text")
            if isinstance(text, str):
                capture.stream("stderr" if content.get("name") == "stderr" else "stdout", text)
        case "display_data":
            capture.rich(_forms(content), display_id=_display_id(content))
        case "execute_result":
            capture.rich(_forms(content), is_result=True, display_id=_display_id(content))
        case "update_display_data":
            capture.update(_forms(content), _display_id(content))
        case "error":
            capture.fail(_error(content))
        case "clear_output":
            capture.clear()
        case "execute_input":
            count = content.get("execution_count")
            if isinstance(count, int):
                capture.execution_count = count
        case _:
            pass


def _forms(content: object) -> dict[str, str]:
    data = _dict(_dict(content).get("data"))
    forms: dict[str, str] = {}
    for mime, value in list(data.items())[:_MAX_FORMS]:
        if len(mime) > _MAX_NAME:
            continue
        if isinstance(value, str):
            forms[mime] = value
        elif isinstance(value, list):
            pieces = cast("list[object]", value)
            if all(isinstance(piece, str) for piece in pieces):
                forms[mime] = "".join(cast("list[str]", pieces))
        elif isinstance(value, dict):
            forms[mime] = json.dumps(value)
    return forms


def _display_id(content: object) -> str:
    value = _dict(_dict(content).get("transient")).get("display_id")
    return value if isinstance(value, str) and len(value) <= _MAX_NAME else ""


def _error(content: object) -> ExecutionError:
    fields = _dict(content)
    name, message = fields.get("ename"), fields.get("evalue")
    lines = fields.get("traceback")
    frames = cast("list[object]", lines)[:_MAX_FRAMES] if isinstance(lines, list) else []
    text = "\n".join(frame for frame in frames if isinstance(frame, str))
    return ExecutionError(
        name=tidy(name[:200]) if isinstance(name, str) else "Error",
        message=tidy(message[:_MAX_MESSAGE]) if isinstance(message, str) else "",
        traceback=tidy(text[-_MAX_TRACEBACK:]).strip("\n"),
    )


def _dict(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
