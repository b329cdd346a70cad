"""The folders of Seer's state and cache, and those of the installed packages."""

import os
import sys
from pathlib import Path

from seer.errors import HostResourceError


def state_dir() -> Path:
    """`$XDG_STATE_HOME/seer`, or `~/.local/state/seer`. Created with mode 0700 if it is missing."""
    return _made("XDG_STATE_HOME", ".local/state")


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/seer`, or `~/.cache/seer`. Created with mode 0700 if it is missing."""
    return _made("XDG_CACHE_HOME", ".cache")


def package_folders() -> list[Path]:
    """The folders of `sys.path` that hold installed packages, in its order."""
    found = [Path(p).absolute() for p in sys.path]
    names = ("site-packages", "dist-packages")
    return [path for path in dict.fromkeys(found) if path.name in names and path.is_dir()]


def _made(variable: str, default: str) -> Path:
    # The XDG specification says that a relative path must be ignored.
    root = os.environ.get(variable, "")
    folder = (Path(root) if root.startswith("/") else Path.home() / default) / "seer"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        failed = HostResourceError(
            f"cannot create {folder}: {error.strerror}; set {variable} to a folder that this user "
            "can write"
        )
        failed.errno = error.errno
        raise failed from error
    return folder
