"""File operations for one connection, performed in the jail with the jail's view and permissions.

So a link that an agent planted leads only to files that the agent can reach itself. Errors are sent
as the errno and the path.
"""

from __future__ import annotations

import errno
import os
import stat

from . import wire
from .frame_stream import FrameStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .wire import Encodable, Message

_ENTRIES_PER_FRAME = 500


def read(stream: FrameStream, request: Message, path: bytes) -> None:
    """Send a regular file's bytes from `offset`, at most `length` of them (negative: all)."""
    offset, left = wire.get_int(request, "offset", 0), wire.get_int(request, "length", -1)
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        limit = wire.get_int(request, "limit", -1)
        if left < 0 and 0 <= limit < status.st_size - offset:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        stream.queue_message(wire.OK, size=status.st_size)
        os.lseek(fd, offset, os.SEEK_SET)
        while left != 0 and not stream.at_end:
            data = os.read(fd, wire.CHUNK if left < 0 else min(wire.CHUNK, left))
            if not data:
                break
            left -= len(data) if left > 0 else 0
            stream.queue(wire.DATA, data)
            stream.flush()
    finally:
        os.close(fd)
    stream.queue(wire.END)


def write(stream: FrameStream, request: Message, path: bytes) -> None:
    """Receive a file's bytes, and put the file in place once all are written."""
    mode = wire.get_int(request, "mode", 0o644) & 0o777
    try:
        if wire.get_int(request, "append", 0):
            _append(stream, path, mode)
        else:
            _replace(stream, path, mode)
    except OSError as error:
        stream.fail(error, path)
        # Let the sender finish, or the error could be lost with the connection.
        while not stream.at_end and (found := stream.wait_frame()) is not None:
            if found[0] == wire.END:
                break
        return
    stream.queue(wire.OK)


def _append(stream: FrameStream, path: bytes, mode: int) -> None:
    _make_parents(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags, mode)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        _receive(stream, fd)
    finally:
        os.close(fd)


def _replace(stream: FrameStream, path: bytes, mode: int) -> None:
    if os.path.isdir(path) or path.endswith(b"/"):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.access(path, os.W_OK):
        # Replacing a file does not need write permission for it, so check that here.
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
    _make_parents(path)
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, b".seer-" + os.urandom(8).hex().encode())
    # The file is created with its mode, because in some jails a later change has no effect. This
    # process serves one request, so its umask affects nothing else.
    os.umask(0)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            _receive(stream, fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _make_parents(path: bytes) -> None:
    folder = os.path.dirname(path)
    if not folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as error:
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from None


def _receive(stream: FrameStream, fd: int) -> None:
    while (found := stream.wait_frame()) is not None:
        kind, payload = found
        if kind == wire.END:
            return
        if kind != wire.DATA:
            raise wire.WireError(f"file data was expected, not a frame of kind {kind!r}")
        view = memoryview(payload)
        while view:
            view = view[os.write(fd, view) :]
    raise ConnectionAbortedError(
        errno.ECONNABORTED, "the sender closed the connection before the end of the file"
    )


def status(stream: FrameStream, request: Message, path: bytes) -> None:
    """Describe one file; the link itself, not its target, unless `follow` is set."""
    follow = bool(wire.get_int(request, "follow", 1))
    found = os.stat(path) if follow else os.lstat(path)
    stream.queue_message(wire.OK, **_describe(os.path.basename(path), found))


def listing(stream: FrameStream, request: Message, path: bytes) -> None:
    """Describe everything in a folder, in frames of several hundred entries."""
    entries: list[Encodable] = []
    with os.scandir(path) as found:
        stream.queue(wire.OK)
        for entry in found:
            try:
                entries.append(_describe(entry.name, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue
            if len(entries) >= _ENTRIES_PER_FRAME:
                stream.queue(wire.DATA, wire.encode(entries))
                stream.flush()
                entries = []
    stream.queue(wire.DATA, wire.encode(entries))
    stream.queue(wire.END)


def make_folder(stream: FrameStream, request: Message, path: bytes) -> None:
    """Make a folder and its parents. An existing folder is not an error."""
    _make_parents(path.rstrip(b"/"))
    mode = wire.get_int(request, "mode", 0o755) & 0o777
    os.umask(0)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    stream.queue(wire.OK)


def remove(stream: FrameStream, request: Message, path: bytes) -> None:
    """Remove a file, a link or an empty folder; with `recursive`, a folder and all in it."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
    elif wire.get_int(request, "recursive", 0):
        from .cleaning import remove_tree

        remove_tree(path)
    else:
        os.rmdir(path)
    stream.queue(wire.OK)


def _describe(name: bytes, found: os.stat_result) -> dict[str, Encodable]:
    mode = found.st_mode
    if stat.S_ISREG(mode):
        kind = "file"
    elif stat.S_ISDIR(mode):
        kind = "folder"
    elif stat.S_ISLNK(mode):
        kind = "link"
    elif stat.S_ISSOCK(mode):
        kind = "socket"
    else:
        kind = "other"
    return {
        "name": name,
        "kind": kind,
        "size": found.st_size,
        "mode": stat.S_IMODE(mode),
        "mtime_ns": found.st_mtime_ns,
    }


OPERATIONS = {
    b"read": read,
    b"write": write,
    b"stat": status,
    b"list": listing,
    b"mkdir": make_folder,
    b"remove": remove,
}
