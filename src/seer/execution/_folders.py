"""Folders of a session on the controller's host that no agent can write to."""

import fcntl
import os
from pathlib import Path

from seer import _janitor
from seer._files import replace_file
from seer._places import state_dir
from seer._transient import TransientFolder
from seer.errors import RemoteFileError


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
        _janitor.sweep(str(root))
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


class HostFolder:
    """The file methods of a machine, for one folder of this host. Paths are relative to it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file.

        Raises:
            RemoteFileError: With the errno.
        """
        try:
            with (self._root / path).open("rb") as file:
                file.seek(offset)
                return file.read(-1 if length is None else length)
        except OSError as error:
            raise RemoteFileError(error.errno, error.strerror, path) from None

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False
    ) -> None:
        """Write a file, whole or not at all. All users in a jail may read it.

        Raises:
            RemoteFileError: With the errno.
        """
        target = self._root / path
        try:
            await self.ensure_dir(str(Path(path).parent))
            if append and target.exists():
                data = target.read_bytes() + data
            replace_file(target, data, mode=mode)
        except OSError as error:
            raise RemoteFileError(error.errno, error.strerror, path) from None

    async def ensure_dir(self, path: str) -> None:
        """Make a folder and its parents, readable for the jail's user."""
        folder = self._root
        for part in Path(path).parts:
            folder = folder / part
            if not folder.is_dir():
                folder.mkdir()
                folder.chmod(0o755)
