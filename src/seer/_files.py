"""Writing files and folders that other processes may be reading, and locks between processes."""

import fcntl
import os
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path


def replace_file(
    path: Path, content: bytes | str, *, mode: int | None = None, durable: bool = False
) -> None:
    """Write a file so that readers see the old content or the new, never a part of it.

    Args:
        path: The file. Its folder exists.
        content: The whole content; text is written as UTF-8, with lone surrogates replaced.
        mode: Permissions; by default those that the user's umask leaves.
        durable: Whether the content must be on the disk, not only in the cache, before it replaces
            the old file.

    Raises:
        OSError: The file cannot be written; the old file is unchanged.
    """
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o666 if mode is None else mode), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder, by relative path. Any user that can enter it can read them."""
    for name, content in files.items():
        for parent in reversed(Path(name).parents[:-1]):
            (folder / parent).mkdir(exist_ok=True)
            (folder / parent).chmod(0o755)
        replace_file(folder / name, content, mode=0o644)


def place_folder(draft: Path, folder: Path) -> None:
    """Rename a finished draft to its place, unless another process put the same folder there first.

    Raises:
        OSError: The draft cannot be renamed, and the folder does not exist.
    """
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the lock file `path`, created if missing. Blocks while another process holds it."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
