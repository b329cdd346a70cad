"""Exit codes of the command line. click itself uses 2, for wrong usage."""

OK = 0
FAILED = 1
FOUND = 3
"""Done, but problems were found in what was examined."""
INTERRUPTED = 130
"""Ctrl-C ended the command: 128 + SIGINT, as in a shell."""
