"""A session's own folder on the controller's host, which no agent can reach."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class PrivateFolder:
    """Holds what a session keeps beside its workspace; gone when the session is."""

    def __init__(self, prefix: str) -> None:
        root = _root()
        self.name = f"{prefix}-{secrets.token_hex(6)}"
        self.path = root / self.name
        with _locked(root):
            _sweep(root)
            self.path.mkdir(mode=0o700)
            # Held while this process lives, so that others can tell a live folder from a leftover.
            self._lock = _open_lock(self.path)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.outputs = self.folder("outputs")

    def folder(self, name: str, mode: int = 0o700) -> Path:
        """A folder in it, made if it is not there."""
        path = self.path / name
        path.mkdir(mode=mode, exist_ok=True)
        return path

    def remove(self) -> None:
        """Remove the folder and all in it. Removing twice is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _sweep(root: Path) -> None:
    """Remove folders whose process has ended without doing so."""
    for path in root.iterdir():
        if not path.is_dir():
            continue
        lock = _open_lock(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


@contextmanager
def _locked(root: Path) -> Generator[None]:
    """Keep other processes from sweeping a folder that is only half made."""
    lock = _open_lock(root)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _open_lock(folder: Path) -> int:
    return os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _root() -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
    root = base / "seer" / "sessions"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root
