"""Where Seer keeps its state, from the variables that its documentation names."""

import os
from pathlib import Path


def state_dir() -> Path:
    """The folder that holds the state of machines and sessions."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root) / "seer"
