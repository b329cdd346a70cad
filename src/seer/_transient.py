"""Temporary folders that are removed when this process ends, even if it is killed.

The code that makes a folder removes it. A small process, the janitor (`_janitor`), removes the
folders that still exist when this process ends. It starts when the first folder is made.
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
    """A folder that only this user can read. Use it as a context manager, or call `remove`.

    Attributes:
        name: Its name: the prefix and a random part.
        path: Its path.
    """

    def __init__(self, prefix: str, *, inside: Path | None = None) -> None:
        """Create the folder.

        Args:
            prefix: The beginning of its name.
            inside: The parent folder; by default the system's folder for temporary files. To keep
                the folder when it is complete, rename it within the parent.
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
        """A subfolder, created if it does not exist."""
        path = self.path / name
        path.mkdir(mode=mode, exist_ok=True)
        return path

    def remove(self) -> None:
        """Remove the folder with its content. This blocks; removing twice is harmless.

        In a fork of the process that made the folder, this does nothing.
        """
        if self._process != os.getpid():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        _watcher.discard(self.path)


def remove_at_end(path: Path) -> None:
    """Let the janitor remove a file or folder if it still exists when this process ends."""
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
        """In a forked process: close the pipe of the parent's janitor, and start without paths.

        The janitor waits until the last copy of the pipe is closed, and the paths are the parent's.
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
        """Send paths to the janitor. Returns False if the janitor was killed."""
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
            # The janitor outlives its owner by a moment. It has its own session and no output, so
            # a program that reads the owner's output to its end does not wait for the janitor.
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
