"""Exit codes of the command line; 2, wrong use, is click's own."""

OK = 0
FAILED = 1
FOUND = 3
"""Done, but problems were found in what was examined."""
INTERRUPTED = 130
"""Ctrl-C ended the command, as with a shell's 128 + SIGINT."""
