"""A session's folder on the controller's host, where no agent can write."""

import fcntl
import os

from seer import _janitor
from seer._paths import state_dir
from seer._transient import TransientFolder


class PrivateFolder(TransientFolder):
    """Holds a session's files outside its workspace. It is removed with the session.

    If this process and its janitor are both killed, the next process that makes a private folder
    removes this one.

    Attributes:
        outputs: A folder in it for long outputs.
    """

    def __init__(self, prefix: str) -> None:
        root = state_dir() / "sessions"
        root.mkdir(mode=0o700, exist_ok=True)
        _janitor.remove_abandoned(str(root))
        with _janitor.locked(str(root)):
            super().__init__(prefix, inside=root)
            # Held while this process runs, so that other processes recognize a leftover folder.
            self._lock = _janitor.open_lock(str(self.path))
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.outputs = self.folder("outputs")

    def remove(self) -> None:
        """Remove the folder and all in it. Removing twice is harmless."""
        super().remove()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
