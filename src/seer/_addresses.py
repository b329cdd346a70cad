"""Unix sockets at paths of any length: the kernel takes no more than 107 bytes of one."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def address(path: Path) -> Generator[str]:
    """A short address of the socket at `path`, to bind or connect to; valid within the block."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
