"""Folders that belong to this process and go with it, whatever it dies of.

Each is removed by whoever made it. What this process did not remove before its end, the janitor
does (`_janitor`), a small process that is started with the first of them.
"""

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

from seer import _janitor


class TransientFolder:
    """A folder for this user alone; use it as a context manager, or call `remove`.

    Attributes:
        name: Its name, of the prefix and a random part.
        path: Where it is.
    """

    def __init__(self, prefix: str, *, inside: Path | None = None) -> None:
        """Make it.

        Args:
            prefix: What its name begins with.
            inside: The folder that it shall be in; where temporary files are by default. Renamed
                there, once it is complete, it lasts.
        """
        self.name = f"{prefix}-{secrets.token_hex(6)}"
        if inside is None:
            self.path = Path(tempfile.gettempdir(), f"seer-{self.name}")
        else:
            self.path = inside / self.name
        self._process = os.getpid()
        remove_at_end(self.path)
        self.path.mkdir(mode=0o700)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def folder(self, name: str, mode: int = 0o700) -> Path:
        """A folder in it, made if it is not there."""
        path = self.path / name
        path.mkdir(mode=mode, exist_ok=True)
        return path

    def remove(self) -> None:
        """Remove the folder and all in it; blocks. Removing twice is harmless.

        In a fork of the process that made it this does nothing: the folder is the parent's.
        """
        if self._process != os.getpid():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        _watcher.discard(self.path)


def remove_at_end(path: Path) -> None:
    """Have a file or folder removed when this process has ended without doing so."""
    _watcher.add(path)


class _Watcher:
    """The janitor of this process, started with the first path."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._owner = 0
        self._pipe = -1
        self._paths: set[bytes] = set()

    def forget_parent(self) -> None:
        """In a fork: the paths are the parent's to keep, and so is its janitor, which waits for the
        last end of the pipe to be closed.
        """
        if self._pipe >= 0:
            os.close(self._pipe)
        self.__init__()

    def add(self, path: Path) -> None:
        with self._lock:
            self._paths.add(os.fsencode(path))
            if not self._owner or not self._tell([os.fsencode(path)]):
                self._start()
                self._tell(self._paths)

    def discard(self, path: Path) -> None:
        with self._lock:
            self._paths.discard(os.fsencode(path))

    def _tell(self, paths: Iterable[bytes]) -> bool:
        """Name paths to the janitor; False if it was killed."""
        try:
            for path in paths:
                os.write(self._pipe, path + b"\0")
        except BrokenPipeError:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
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
os.register_at_fork(after_in_child=_watcher.forget_parent)
