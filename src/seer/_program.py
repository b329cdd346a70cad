"""Runs a program for `seer run`: like `python PROGRAM`, but with one line for some errors.

Ctrl-C prints nothing, because `seer run` says what was kept, and a second one does not disturb the
ending. A record that cannot be written, such as on a full disk, is one line, and so is a package
that is not installed. Every other error is Python's own traceback.
"""

import asyncio
import io
import signal
import sys
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, cast
from weakref import WeakKeyDictionary

from seer.errors import MissingExtraError, RecordError


def main() -> None:
    """Run the program that the arguments name."""
    del sys.argv[0]
    file = str(Path(sys.argv[0]).absolute())

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            return
        failure = _in_one_line(error)
        if failure is None:
            shown = _from_file(trace, file)
            sys.__excepthook__(kind, error.with_traceback(shown), shown)
        else:
            from seer.console import say

            say(f"error: {failure}", file=sys.stderr)

    def unraisable(found: "sys.UnraisableHookArgs") -> None:
        if not isinstance(found.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(found)

    sys.excepthook, sys.unraisablehook = uncaught, unraisable
    _ignore_second_interrupts()
    # `seer run` blocks it until here, so that an early Ctrl-C shows no traceback either.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    module = ModuleType("__main__")
    module.__dict__.update(__file__=file, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _ignore_second_interrupts() -> None:
    """Let `asyncio.run` ignore the Ctrl-C after the one that has cancelled the program's task.

    A second Ctrl-C would raise between any two steps of the loop: sandboxes would not be ended, and
    the record would not be closed. A third one still raises. A handler of our own in place of
    asyncio's would not know which task to cancel, so asyncio's is wrapped.
    """
    runner: Any = asyncio.Runner
    usual = runner._on_sigint
    presses = WeakKeyDictionary[asyncio.Task[Any], int]()

    def pressed(
        self: asyncio.Runner, number: int, frame: FrameType | None, main_task: asyncio.Task[Any]
    ) -> None:
        presses[main_task] = presses.get(main_task, 0) + 1
        if presses[main_task] != 2 or main_task.done():
            usual(self, number, frame, main_task)

    runner._on_sigint = pressed


def _in_one_line(error: BaseException) -> BaseException | None:
    """The error whose message says all; of several agents' errors the first, if all are such."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        inner = [_in_one_line(item) for item in group.exceptions]
        return inner[0] if all(inner) else None
    return error if isinstance(error, (RecordError, MissingExtraError)) else None


def _from_file(trace: TracebackType | None, file: str) -> TracebackType | None:
    """The part of a traceback that begins in the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
