"""Exit codes of the command line; 2, wrong use, is click's own."""

OK = 0
FAILED = 1
FOUND = 3
"""Done, and something is wrong with what was looked at."""
INTERRUPTED = 130


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with one line on what was kept and how to go on."""
