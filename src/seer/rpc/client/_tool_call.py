"""The tool call that a call of the gate belongs to.

A run makes a random token for each tool call of its agent. The harness sets it while it calls a
tool. A session hands it to the code that it runs: a kernel calls `begin` before each cell, and a
shell command has it in its environment. The client sends the token with each call, and the run
finds the tool call by it. Code in a jail can send any token that it has seen, so a token is only a
claim of the caller.
"""

from __future__ import annotations

import os
from _contextvars import ContextVar

VARIABLE = "SEER_TOOL_CALL"
"""The environment variable that gives a process the token of its tool call."""
_LONGEST = 64
_ALLOWED = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-"

_here: ContextVar[str | None] = ContextVar("seer_tool_call", default=None)


class tool_call:
    """Calls of the gate inside the block, and in tasks that it starts, belong to a tool call.

    Args:
        token: The run's token for the tool call.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def __enter__(self) -> None:
        self._before = _here.set(self._token)

    def __exit__(self, *_: object) -> None:
        _here.reset(self._before)


def current() -> str:
    """The token for a call made here; empty if it belongs to no tool call."""
    found = _here.get()
    if found is None:
        return _of_thread() if _in_kernel else _of_process
    return found


def _from_environment() -> str:
    """The token of this process; empty if it is not valid in a header."""
    data = os.environ.get(VARIABLE, "").encode("utf-8", "surrogateescape")
    return "" if len(data) > _LONGEST or data.translate(None, _ALLOWED) else data.decode()


_of_process = _from_environment()
_in_kernel = False
"""Whether this process is a kernel, where one tool call follows another."""


def begin(token: str) -> None:
    """In a kernel: set the tool call that the next cell's calls belong to; empty for none.

    Tasks, threads and processes that the cell starts keep its token when the next cell begins.
    """
    global _in_kernel
    if not _in_kernel:
        _in_kernel = True
        _mark_threads()
    _here.set(token)
    if token:
        os.environ[VARIABLE] = token
    else:
        os.environ.pop(VARIABLE, None)


def _of_thread() -> str:
    import threading

    return getattr(threading.current_thread(), "_seer_tool_call", "")


def _mark_threads() -> None:
    """Give each new thread the token of the call that starts it: threads begin without context."""
    import functools
    import threading

    start = threading.Thread.start

    @functools.wraps(start)
    def marked(self: threading.Thread) -> None:
        self._seer_tool_call = current()  # pyright: ignore[reportAttributeAccessIssue]
        start(self)

    threading.Thread.start = marked
