"""Runs a program for `seer run`: like `python PROGRAM`, but with one line for two kinds of errors.

Ctrl-C prints nothing, because `seer run` says what was kept. A record that cannot be written, such
as on a full disk, is one line. Every other error is Python's own traceback.
"""

import io
import signal
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from typing import cast

from seer.errors import RecordError


def main() -> None:
    """Run the program that the arguments name."""
    del sys.argv[0]
    file = str(Path(sys.argv[0]).absolute())

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            return
        failure = _failure_of_record(error)
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
    # `seer run` blocks it until here, so that an early Ctrl-C shows no traceback either.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    module = ModuleType("__main__")
    module.__dict__.update(__file__=file, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _failure_of_record(error: BaseException) -> BaseException | None:
    """The first error of a record, where there are only such; several agents may fail at once."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        inner = [_failure_of_record(item) for item in group.exceptions]
        return inner[0] if all(inner) else None
    return error if isinstance(error, RecordError) else None


def _from_file(trace: TracebackType | None, file: str) -> TracebackType | None:
    """The part of a traceback that begins in the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
