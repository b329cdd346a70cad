"""Where Seer keeps what belongs to running machines, and copies that can be made again."""

import os
from pathlib import Path

from seer.errors import HostResourceError


def state_dir() -> Path:
    """`$XDG_STATE_HOME/seer`, or `~/.local/state/seer`. Made private if new."""
    return _made("XDG_STATE_HOME", ".local/state")


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/seer`, or `~/.cache/seer`. Made private if new."""
    return _made("XDG_CACHE_HOME", ".cache")


def _made(variable: str, default: str) -> Path:
    # The XDG rules say that a relative path is to be ignored.
    root = os.environ.get(variable, "")
    folder = (Path(root) if root.startswith("/") else Path.home() / default) / "seer"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        failed = HostResourceError(
            f"{folder} cannot be made: {error.strerror}; set {variable} to a folder that this user "
            "can write"
        )
        failed.errno = error.errno
        raise failed from error
    return folder
