"""A session's own folder on the controller's host, which no agent can reach."""

import fcntl
import os

from seer import _janitor
from seer._places import state_dir
from seer._transient import TransientFolder


class PrivateFolder(TransientFolder):
    """Holds what a session keeps beside its workspace; gone when the session is.

    It holds more than others do, so what was left when its janitor was killed too is removed by
    the next process that makes one.

    Attributes:
        outputs: A folder in it for long outputs.
    """

    def __init__(self, prefix: str) -> None:
        root = state_dir() / "sessions"
        root.mkdir(mode=0o700, exist_ok=True)
        _janitor.sweep(str(root))
        with _janitor.locked(str(root)):
            super().__init__(prefix, inside=root)
            # Held while this process lives, so that others can tell a live folder from a leftover.
            self._lock = _janitor.open_lock(str(self.path))
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.outputs = self.folder("outputs")

    def remove(self) -> None:
        """Remove the folder and all in it. Removing twice is harmless."""
        super().remove()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
