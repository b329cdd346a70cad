"""Open paths inside a folder that hostile code can write to, without leaving the folder.

The kernel checks the path (`openat2`: beneath, no symbolic links), so swapping files during the
call has no effect. If the kernel lacks `openat2`, each component is opened from its parent without
following links, which refuses the same paths.
"""

import ctypes
import errno
import os
import socket
import stat
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache

from seer.errors import PathEscapeError

Root = int | str | os.PathLike[str]
"""A folder: its path, or a descriptor of it."""

_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_O_PATH = getattr(os, "O_PATH", 0)
_RETRIES = 64
_CONNECT_PATIENCE = 5.0
"""Seconds to wait for room in a listener's queue."""


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_beneath(
    root: Root, relative: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600
) -> int:
    """Open `relative` inside `root`, and return the descriptor (closed on exec).

    Args:
        root: The folder that the path must stay in.
        relative: A path inside it, without `..`; `.` is the folder itself.
        flags: As for `os.open`.
        mode: The mode of a new file.

    Raises:
        PathEscapeError: The path is absolute, has `..` in it, or passes a symbolic link.
        OSError: As from `os.open`.
    """
    text = os.fspath(relative)
    parts = _checked(text)
    flags |= os.O_CLOEXEC
    with _folder(root) as folder:
        try:
            fd = _openat2(folder, "/".join(parts) or ".", flags, mode)
            if fd is None:
                fd = _walk(folder, parts, flags, mode)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV):
                raise PathEscapeError(
                    error.errno, f"{text!r} passes a symbolic link or leads out of its folder", text
                ) from None
            raise
    return fd


def read_bytes(root: Root, relative: str | os.PathLike[str], *, limit: int | None = None) -> bytes:
    """The content of the regular file `relative` inside `root`.

    Args:
        root: The folder that the path must stay in.
        relative: A path inside it.
        limit: The largest size to accept, in bytes.

    Raises:
        PathEscapeError: As from `open_beneath`, or it is not a regular file.
        OSError: As from `os.open`; EFBIG if the file has more than `limit` bytes.
    """
    # Opening a planted FIFO must not wait for a writer.
    fd = open_beneath(root, relative, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        _require(fd, stat.S_ISREG, relative, "a regular file")
        data = file.read() if limit is None else file.read(limit + 1)
    if limit is not None and len(data) > limit:
        raise OSError(errno.EFBIG, f"has more than {limit} bytes", os.fspath(relative))
    return data


def connect_beneath(root: Root, relative: str | os.PathLike[str]) -> socket.socket:
    """Connect to the Unix stream socket `relative` inside `root`, for a path of any length.

    Args:
        root: The folder that the path must stay in.
        relative: The socket in it. The returned socket blocks.

    Raises:
        PathEscapeError: As from `open_beneath`, or it is not a socket.
        OSError: Nothing listens there.
    """
    fd = open_beneath(root, relative, _O_PATH)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _require(fd, stat.S_ISSOCK, relative, "a socket")
        connection.settimeout(_CONNECT_PATIENCE)
        connection.connect(f"/proc/self/fd/{fd}")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(fd)
    return connection


def _checked(text: str) -> list[str]:
    if "\0" in text:
        raise PathEscapeError(errno.EINVAL, f"{text!r} contains a NUL character", text)
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.startswith("/") or ".." in parts:
        raise PathEscapeError(errno.EXDEV, f"{text!r} must be a relative path without '..'", text)
    return parts


def _require(
    fd: int, test: Callable[[int], bool], relative: str | os.PathLike[str], what: str
) -> None:
    if not test(os.fstat(fd).st_mode):
        text = os.fspath(relative)
        raise PathEscapeError(errno.EPERM, f"{text!r} is not {what}", text)


@contextmanager
def _folder(root: Root) -> Generator[int]:
    if isinstance(root, int):
        yield root
        return
    fd = os.open(root, _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _openat2(folder: int, path: str, flags: int, mode: int) -> int | None:
    """The descriptor, or None if the kernel has no such call."""
    if not sys.platform.startswith("linux"):
        return None
    # O_TMPFILE includes the bit of O_DIRECTORY, so compare all of its bits.
    tmpfile: int = getattr(os, "O_TMPFILE", os.O_CREAT)
    creates = flags & os.O_CREAT or flags & tmpfile == tmpfile
    how = _OpenHow(flags, mode if creates else 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
    call = _libc().syscall
    for _ in range(_RETRIES):
        fd = call(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(folder),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code == errno.ENOSYS:
            return None
        # EAGAIN: because of a concurrent rename, the kernel could not verify the path.
        if code not in (errno.EAGAIN, errno.EINTR):
            raise OSError(code, os.strerror(code), path)
    raise PathEscapeError(errno.EAGAIN, f"{path!r} keeps changing while it is being opened", path)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _walk(folder: int, parts: list[str], flags: int, mode: int) -> int:
    current = os.open(".", _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    for part in parts[:-1]:
        try:
            child = _step(current, part, _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0)
        finally:
            os.close(current)
        current = child
    try:
        return _step(current, parts[-1] if parts else ".", flags, mode)
    finally:
        os.close(current)


def _step(folder: int, name: str, flags: int, mode: int) -> int:
    """Open one name in a folder. A link raises ELOOP with any flags."""
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=folder)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise
    if stat.S_ISLNK(os.fstat(fd).st_mode):  # what O_PATH gives for a link
        os.close(fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return fd
