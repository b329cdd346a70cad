"""The command line: parse, call the library, print. No command does what the library cannot."""

try:
    from seer import _clash as _clash
except ImportError as error:
    raise SystemExit(f"error: {error}") from None

try:
    from seer.cli._app import main
except KeyboardInterrupt:
    # Ctrl-C before any command has begun.
    raise SystemExit("interrupted") from None

__all__ = ["main"]
