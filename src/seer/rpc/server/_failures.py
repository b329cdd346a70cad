"""Exceptions as data: what a caller learns about a failure, and the status of the response.

The client never imports a class by its name. It gets the name as text, with the builtin exceptions
that the class derives from, and makes a class of its own from those.
"""

from __future__ import annotations

import builtins
import json
import linecache
import sys
from collections.abc import Callable
from json.encoder import encode_basestring_ascii as _quoted
from types import TracebackType
from typing import TYPE_CHECKING

from seer.rpc.interface._load import network_advice
from seer.rpc.wire._protocol import STATUS

from ._replies import Reply

if TYPE_CHECKING:
    from seer.errors import GateError

_MAX_MESSAGE = 16 * 1024
_MAX_FRAMES = 60
_MAX_CHAIN = 10
_HEAD = "Traceback (most recent call last):\n"
_CAUSE = "The above exception was the direct cause of the following exception:\n"
_CONTEXT = "During handling of the above exception, another exception occurred:\n"


class Stopped(BaseException):
    """Raised inside a function that must stop (deadline, cancel, caller gone).

    Not an `Exception`, so that code which catches those does not swallow it by accident.
    """


def error_text(kind: str, message: str, **more: object) -> bytes:
    """The JSON text of one of Seer's own errors."""
    return json.dumps({"error": {"type": kind, "message": message, **more}}).encode()


def gate_failure(error: GateError) -> tuple[int, bytes]:
    """Status and text for an error that the gate itself raised."""
    return STATUS.get(type(error), 500), error_text(type(error).__name__, str(error))


def refusal(error: GateError) -> Reply:
    """The reply that carries an error of the gate itself."""
    status, text = gate_failure(error)
    return Reply(status, text, type(error).__name__)


def uses_gpu() -> bool:
    """Whether this process uses a GPU."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda is not None and cuda.is_initialized()


def raised_text(error: BaseException, trace: str) -> bytes:
    """The JSON text for an exception that an exposed function raised.

    Args:
        error: The exception.
        trace: The traceback that the caller may see; empty for none.
    """
    kind = type(error)
    try:
        message = str(error)
    except Exception as problem:  # the class is the user's, and so is its bug
        message = f"<the exception's text could not be made: {type(problem).__name__}>"
    if len(message) > _MAX_MESSAGE:
        message = message[:_MAX_MESSAGE] + f"... ({len(message)} characters)"
    message += network_advice(error)
    if trace:
        trace = f',"traceback":{_quoted(trace)}'
    return f'{{"error":{{{_class_text(kind)},"message":{_quoted(message)}{trace}}}}}'.encode()


_classes: dict[type[BaseException], str] = {}


def _class_text(kind: type[BaseException]) -> str:
    """The JSON fields for a class: its name, and the builtin classes it derives from."""
    text = _classes.get(kind)
    if text is None:
        names = [c.__name__ for c in kind.__mro__ if getattr(builtins, c.__name__, None) is c]
        names = [n for n in names if n not in ("object", "BaseException", "Exception")]
        text = json.dumps({"type": "RemoteError", "name": kind.__name__, "bases": names})[1:-1]
        if len(_classes) < 1000:
            _classes[kind] = text
    return text


def render(error: BaseException) -> str:
    """The traceback as Python prints it, but without carets and without Seer's own frame.

    The standard module takes about 180 us for this, several times as long as a call. It is used
    only if an exception has more than frames: causes, groups, notes or a syntax error.
    """
    if (
        error.__cause__ is not None
        or (error.__context__ is not None and not error.__suppress_context__)
        or issubclass(type(error), (SyntaxError, BaseExceptionGroup))
        or getattr(error, "__notes__", None)
    ):
        return _render_full(error)
    return "".join([_HEAD, *_frames(_users_part(error), _frame), _last_line(error)])


def render_names(error: BaseException) -> str:
    """The traceback with the names of functions and line numbers, without files and source."""
    # Only the outermost exception passed through Seer's own frame.
    text = _named(error, _users_part(error))
    for _ in range(_MAX_CHAIN):
        if error.__cause__ is not None:
            error, link = error.__cause__, _CAUSE
        elif error.__context__ is not None and not error.__suppress_context__:
            error, link = error.__context__, _CONTEXT
        else:
            break
        text = f"{_named(error, error.__traceback__)}\n{link}\n{text}"
    return text[: 4 * _MAX_MESSAGE]


def _users_part(error: BaseException) -> TracebackType | None:
    """The traceback without its outermost frame, in which Seer called the function."""
    trace = error.__traceback__
    return None if trace is None else trace.tb_next


def _named(error: BaseException, trace: TracebackType | None) -> str:
    """One exception of a chain."""
    more = [f"{note}\n" for note in getattr(error, "__notes__", ())]
    if issubclass(type(error), BaseExceptionGroup):
        inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
        more += [f"  {_last_line(one)}" for one in inside[:_MAX_CHAIN]]
    return "".join([_HEAD, *_frames(trace, _named_frame), _last_line(error), *more])


def _frames(trace: TracebackType | None, show: Callable[[TracebackType], str]) -> list[str]:
    frames: list[str] = []
    while trace is not None:
        frames.append(show(trace))
        trace = trace.tb_next
    if len(frames) > _MAX_FRAMES:
        cut = len(frames) - _MAX_FRAMES
        half = _MAX_FRAMES // 2
        frames[half:-half] = [f"  [{cut} frames left out]\n"]
    return frames


def _last_line(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        text = str(error)
    except Exception:  # the class is the user's
        text = "<exception str() failed>"
    return f"{name}: {text}\n" if text else f"{name}\n"


def _named_frame(trace: TracebackType) -> str:
    return f"  line {trace.tb_lineno}, in {trace.tb_frame.f_code.co_name}\n"


def _frame(trace: TracebackType) -> str:
    code = trace.tb_frame.f_code
    number = trace.tb_lineno
    line = linecache.getline(code.co_filename, number).strip()
    where = f'  File "{code.co_filename}", line {number}, in {code.co_name}\n'
    return f"{where}    {line}\n" if line else where


def forget_sources() -> None:
    """Forget the source lines and classes of the file that a reload replaced."""
    _classes.clear()
    linecache.checkcache()


def _render_full(error: BaseException) -> str:
    import traceback

    trace = _users_part(error)
    parts = traceback.format_exception(type(error), error, trace, limit=_MAX_FRAMES)
    return "".join(parts)[: 4 * _MAX_MESSAGE]
