"""The command line: parse, call the library, print. No command does what the library cannot."""

try:
    from seer import _clash as _clash
except ImportError as error:
    raise SystemExit(f"error: {error}") from None

from seer.cli._app import main

__all__ = ["main"]
