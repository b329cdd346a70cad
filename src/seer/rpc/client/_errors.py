"""Turns the errors in responses into exceptions.

No class is imported by a name from the wire. Seer's own errors come from a fixed table. For an
exception of a function, a subclass of `RemoteError` is made that also inherits the builtin
exception, so that `except ValueError` works.
"""

from __future__ import annotations

import builtins
from typing import Any

from ...errors import GateError, ProtocolError, RemoteError
from ..values._codec import parse_json
from ..wire._protocol import STATUS

_KNOWN = {kind.__name__: kind for kind in STATUS}
_classes: dict[tuple[str, tuple[str, ...]], type[RemoteError]] = {}


class Starting(Exception):
    """The interface is starting. The call was not executed and can be made again soon."""


def error_from(text: bytes | memoryview) -> Exception:
    """The exception for the JSON text of an error."""
    try:
        found: Any = parse_json(str(text, "utf-8", "surrogatepass"))["error"]
        kind, message = str(found["type"]), str(found["message"])
        if kind == "RemoteError":
            return _remote(found, message)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ProtocolError(f"the gate answered with an error of an unknown form: {text!r:.200}")
    if kind == "Starting":
        return Starting(message)
    return _KNOWN.get(kind, GateError)(message)


def _remote(found: dict[str, Any], message: str) -> RemoteError:
    bases = found["bases"]
    if not isinstance(bases, list):
        bases = []
    error = _class(str(found["name"])[:200], tuple(map(str, bases[:10])))(message)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    error.remote_traceback = str(found.get("traceback", ""))
    return error


def _class(name: str, bases: tuple[str, ...]) -> type[RemoteError]:
    known = _classes.get((name, bases))
    if known is not None:
        return known
    parents: list[type[BaseException]] = [RemoteError]
    for base in bases:
        found: Any = getattr(builtins, base, None)
        if _usable(found):
            parents.append(found)
            break
    made: Any = type(
        name if name.isidentifier() else "RemoteError",
        tuple(parents),
        {
            "__init__": _init,
            "__str__": _str,
            "__reduce__": _reduce,
            "__module__": "seer.remote",
            "__doc__": f"{name}, raised by an exposed function.",
            "type_name": name,
            "_bases": bases,
        },
    )
    if len(_classes) < 1000:
        _classes[name, bases] = made
    return made


def _usable(found: Any) -> bool:
    """Whether a builtin can be a base class: an exception that takes one text."""
    return (
        isinstance(found, type)
        and issubclass(found, Exception)
        and not issubclass(found, (RemoteError, BaseExceptionGroup, StopIteration))
        and not issubclass(found, StopAsyncIteration)
    )


def _init(self: Any, message: str) -> None:
    # The builtin's constructor is not called, because some builtins need more than a text.
    self.args = (message,)
    self.remote_message = message


def _str(self: Any) -> str:
    return self.remote_message


def _reduce(self: Any) -> Any:
    return _rebuild, (self.type_name, self._bases, self.remote_message, self.remote_traceback)


def _rebuild(name: str, bases: tuple[str, ...], message: str, traceback: str) -> RemoteError:
    error = _class(name, bases)(message)
    error.remote_traceback = traceback
    return error
