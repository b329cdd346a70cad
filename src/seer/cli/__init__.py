"""The command line: parse, call the library, print. No command does what the library cannot."""

from seer.cli._app import main

__all__ = ["main"]
