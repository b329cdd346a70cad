"""A session's own folder on the controller's host, which no agent can reach."""

import contextlib
import fcntl
import os
import secrets
import shutil
import sys
import threading
from pathlib import Path

from seer.execution import _janitor


class PrivateFolder:
    """Holds what a session keeps beside its workspace; gone when the session is."""

    def __init__(self, prefix: str) -> None:
        root = _root()
        self.name = f"{prefix}-{secrets.token_hex(6)}"
        self.path = root / self.name
        _janitor.sweep(str(root))
        with _janitor.locked(str(root)):
            self.path.mkdir(mode=0o700)
            # Held while this process lives, so that others can tell a live folder from a leftover.
            self._lock = _janitor.open_lock(str(self.path))
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        _watcher.add(self.path)
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


class _Watcher:
    """The janitor of this process, started with the first folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._owner = 0
        self._pipe = -1

    def add(self, folder: Path) -> None:
        """Have `folder` removed when this process ends without doing so."""
        line = os.fsencode(folder) + b"\n"
        with self._lock:
            # A fork has the parent's pipe, which is the parent's to keep open.
            if self._owner == os.getpid() and self._tell(line):
                return
            self._start()
            self._tell(line)

    def _tell(self, line: bytes) -> bool:
        try:
            os.write(self._pipe, line)
        except BrokenPipeError:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._owner = 0
            return False
        return True

    def _start(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
        reader, self._pipe = os.pipe()
        try:
            # Its own session, no environment and no output: it outlives its owner by moments,
            # and nobody who waits for the owner's output waits for it.
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", _janitor.__file__],
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reader, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
            )
        finally:
            os.close(reader)
        self._owner = os.getpid()


_watcher = _Watcher()


def _root() -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
    root = base / "seer" / "sessions"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root
