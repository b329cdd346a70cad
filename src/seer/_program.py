"""Runs a program for `seer run`: like `python PROGRAM`, but with short errors.

Ctrl-C prints nothing, because `seer run` says what was kept. A second Ctrl-C does not disturb the
clean-up. For an error of Seer, this prints its message and the program's line, without Seer's own
frames; if a record cannot be written or a package is not installed, it prints only the message. For
any other error, it prints Python's own traceback.
"""

import asyncio
import io
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, cast
from weakref import WeakKeyDictionary

from seer.errors import MissingExtraError, RecordError, SeerError

_ANYWHERE = (RecordError, MissingExtraError)
"""Errors for which the program's line does not matter."""


def main() -> None:
    """Run the program that the arguments name."""
    del sys.argv[0]
    file = str(Path(sys.argv[0]).absolute())

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            return
        failure = _of_seer(error, Path(file))
        if failure is None:
            shown = _from_file(trace, file)
            sys.__excepthook__(kind, error.with_traceback(shown), shown)
            return
        from seer.console import say

        say(f"error: {failure}", file=sys.stderr)
        for note in getattr(failure, "__notes__", ()):
            say(str(note), file=sys.stderr)
        own = _own_lines(failure.__traceback__, Path(file))
        if own and not isinstance(failure, _ANYWHERE):
            say(
                f"  {Path(own[-1].filename).name}, line {own[-1].lineno}: {own[-1].line}",
                file=sys.stderr,
            )

    def unraisable(found: "sys.UnraisableHookArgs") -> None:
        if not isinstance(found.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(found)

    sys.excepthook, sys.unraisablehook = uncaught, unraisable
    _ignore_second_interrupts()
    # `seer run` blocked SIGINT until here, so that an early Ctrl-C shows no traceback either.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    module = ModuleType("__main__")
    module.__dict__.update(__file__=file, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _ignore_second_interrupts() -> None:
    """Make `asyncio.run` ignore the second Ctrl-C; the first one cancels the program's task.

    A second Ctrl-C would raise between any two steps of the loop: sandboxes would not be ended, and
    the record would not be closed. A third one still raises. This wraps asyncio's handler, because
    a separate handler would not know which task to cancel.
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


def _of_seer(error: BaseException, program: Path) -> SeerError | None:
    """The error, if Seer raised it; for a group of Seer's errors, the first of them.

    None if the message alone does not explain the error: the group holds other errors too, or the
    error was raised while the program handled another one.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        inner = [_of_seer(item, program) for item in group.exceptions]
        return inner[0] if all(inner) and not isinstance(error, SeerError) else None
    if not isinstance(error, SeerError):
        return None
    before = error.__cause__ or error.__context__
    while before is not None:
        if _own_lines(before.__traceback__, program):
            return None
        before = before.__cause__ or before.__context__
    return error


def _own_lines(trace: TracebackType | None, program: Path) -> list[traceback.FrameSummary]:
    """The lines of a traceback that are in the program, or in a file beside it."""
    return [
        frame
        for frame in traceback.extract_tb(trace)
        if Path(frame.filename).is_relative_to(program.parent)
        and "site-packages" not in frame.filename
        and not Path(frame.filename).is_relative_to(Path(__file__).parent)
    ]


def _from_file(trace: TracebackType | None, file: str) -> TracebackType | None:
    """The part of a traceback from the program's first frame on."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
