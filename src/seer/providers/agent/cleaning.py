"""Removes a machine's folders, even hostile ones, and records how the machine ended."""

from __future__ import annotations

import os
import stat

_RECORD_LIMIT = 256 * 1024


def remove_tree(path: bytes) -> None:
    """Remove a folder and everything in it, with any depth, names and modes.

    Links are removed, not followed. Subfolders are first moved to the top, so that a deep tree
    needs neither recursion nor many descriptors.

    Raises:
        OSError: Something could not be removed; the rest is gone.
    """
    top = _open_folder(path)
    try:
        _empty(top)
    finally:
        os.close(top)
    os.rmdir(path)


def _empty(top: int) -> None:
    failure: OSError | None = None
    names = 0
    waiting = [b"."]
    while waiting:
        name = waiting.pop()
        try:
            folder = top if name == b"." else _open_folder(name, top)
        except OSError as error:
            failure = failure or error
            continue
        try:
            for entry in os.listdir(folder):
                child = os.fsencode(entry)
                try:
                    if not stat.S_ISDIR(os.lstat(child, dir_fd=folder).st_mode):
                        os.unlink(child, dir_fd=folder)
                        continue
                    if name == b".":
                        waiting.append(child)
                        continue
                    # Moving a folder rewrites its "..", which needs write permission in it.
                    _make_usable(child, folder)
                    names += 1
                    moved = b".seer-removing-%d-%d" % (os.getpid(), names)
                    os.rename(child, moved, src_dir_fd=folder, dst_dir_fd=top)
                    waiting.append(moved)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    failure = failure or error
        finally:
            if name != b".":
                os.close(folder)
        if name != b".":
            try:
                os.rmdir(name, dir_fd=top)
            except OSError as error:
                failure = failure or error
    if failure is not None:
        raise failure


def _open_folder(name: bytes, parent: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=parent)
    except PermissionError:
        _make_usable(name, parent)
        fd = os.open(name, flags, dir_fd=parent)
    if os.fstat(fd).st_mode & 0o700 != 0o700:
        os.fchmod(fd, 0o700)
    return fd


def _make_usable(name: bytes, parent: int | None) -> None:
    # O_PATH with O_NOFOLLOW never follows a link that has replaced the folder in the meantime.
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=parent)
    try:
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def record_end(state: bytes, machine_id: str, reason: str, *, at: float) -> None:
    """Append how a machine ended to `ended.jsonl`. A long file loses its older half."""
    import fcntl

    line = f'{{"id": {_quote(machine_id)}, "ended_at": {at:.3f}, "reason": {_quote(reason)}}}\n'
    path = os.path.join(state, b"ended.jsonl")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        if size > _RECORD_LIMIT:
            kept = os.pread(fd, size, size - _RECORD_LIMIT // 2).partition(b"\n")[2]
            os.ftruncate(fd, 0)
            os.write(fd, kept)
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def _quote(text: str) -> str:
    """A JSON string. Importing `json` would slow down every machine's start."""
    out = ['"']
    for character in text:
        if character in '"\\':
            out.append("\\" + character)
        elif " " <= character <= "~":
            out.append(character)
        else:
            code = ord(character)
            if code > 0xFFFF:
                code -= 0x10000
                out.append(f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}")
            else:
                out.append(f"\\u{code:04x}")
    out.append('"')
    return "".join(out)
