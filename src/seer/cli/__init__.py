"""The command line: parse, call the library, print. No command does what the library cannot."""

try:
    import seer._clash  # noqa: F401 (fails where another package took our place)
except ImportError as error:
    raise SystemExit(f"error: {error}") from None

from seer.cli._app import main

__all__ = ["main"]
