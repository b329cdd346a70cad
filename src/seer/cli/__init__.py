"""The command line: parse, call the library, print. Everything it does, the library can do too."""

import collections.abc
import sys

try:
    from seer import _name_conflict as _name_conflict
    from seer.cli import _codes
except ImportError as error:
    raise SystemExit(f"error: {error}") from None

__all__ = ["main"]


def main(arguments: collections.abc.Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Args:
        arguments: The arguments after `seer`. Without them, this reads `sys.argv` and also
            handles Ctrl-C.
    """
    presses = None
    try:
        # Imported here, so that Ctrl-C during an import shows no traceback.
        if arguments is None:
            from seer.cli._interrupts import Presses

            presses = Presses()
        from seer.cli._app import run

        return run(arguments, presses)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return _codes.INTERRUPTED
    finally:
        if presses is not None:
            presses.over()
