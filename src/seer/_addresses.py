"""Unix sockets at paths of any length. The kernel accepts addresses of at most 107 bytes."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def address(path: Path) -> Generator[str]:
    """A short address for the socket at `path`, to bind or connect to within the block."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
