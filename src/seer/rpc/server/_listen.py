"""Unix sockets at paths of any length."""

from __future__ import annotations

import contextlib
import os
import socket

BACKLOG = 1024


def listen(path: str, mode: int) -> socket.socket:
    """A listening, non-blocking Unix socket at `path`; what was there before is replaced.

    Raises:
        OSError: The folder does not exist or cannot be written to.
    """
    folder, name = os.path.split(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Addresses have at most 107 bytes; through its folder's descriptor any path is short.
        fd = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            short = f"/proc/self/fd/{fd}/{name}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(short)  # noqa: PTH108 (import time)
            listener.bind(short)
            os.chmod(short, mode)  # noqa: PTH101 (import time)
        finally:
            os.close(fd)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
