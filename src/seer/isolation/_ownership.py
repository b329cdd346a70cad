"""Gives a folder and all its content to another user.

The keeper of a machine runs from a copy of this file, so it is self-contained and uses only the
standard library. The folder may be hostile: links, thousands of levels, files that vanish.
"""

from __future__ import annotations

import errno
import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def chown_tree(
    root: int | str | bytes | os.PathLike[str], uid: int, gid: int, *, only: int | None = None
) -> None:
    """Give `root` and everything in it to a user, without following links or leaving the disk.

    A file with several hard links keeps its owner, because one of them may be outside the folder.

    Args:
        root: A folder, or a descriptor of one.
        uid: The user to give it to.
        gid: The group to give it to.
        only: Give only files of this user, including those with several hard links.

    Raises:
        OSError: As from `os.chown`; ESTALE when a folder was moved out during the walk.
    """
    fd = os.open(".", _FOLDER, dir_fd=root) if isinstance(root, int) else os.open(root, _FOLDER)
    try:
        top = os.fstat(fd)
        if only is None or top.st_uid == only:
            os.fchown(fd, uid, gid)
        # One descriptor is enough at any depth: ".." leads to the parent, which is then checked.
        levels = [_give(fd, top.st_dev, uid, gid, only)]
        path = [top.st_ino]
        while True:
            if levels[-1]:
                below = _enter(fd, levels[-1].pop())
                if below is None:
                    continue
                os.close(fd)
                fd = below
                path.append(os.fstat(fd).st_ino)
                levels.append(_give(fd, top.st_dev, uid, gid, only))
                continue
            levels.pop()
            path.pop()
            if not levels:
                return
            above = os.open("..", _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = above
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) != (top.st_dev, path[-1]):
                raise OSError(errno.ESTALE, "a folder was moved while its owner was changed", root)
    finally:
        os.close(fd)


def _enter(fd: int, name: str) -> int | None:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None  # gone, or something else by now
        raise


def _give(fd: int, device: int, uid: int, gid: int, only: int | None) -> list[str]:
    """Give away the content of a folder. Returns its subfolders, which are not yet walked."""
    folders: list[str] = []
    for name in os.listdir(fd):
        try:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if found.st_dev != device:
                continue
            is_folder = stat.S_ISDIR(found.st_mode)
            if only is None:
                wanted = found.st_uid != uid and (is_folder or found.st_nlink == 1)
            else:
                wanted = found.st_uid == only
            if wanted:
                os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if is_folder:
            folders.append(name)
    return folders
