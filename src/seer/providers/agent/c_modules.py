"""The C modules below `signal` and `socket`, with types.

`signal` and `socket` wrap their C modules in enumerations. Importing those takes longer than
everything else that a steward imports. The names used here exist in both.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable
else:
    import _signal as signal
    import _socket as socket

__all__ = ["accept_from", "signal", "socket", "wake_on", "with_address"]


def accept_from(listener: socket.socket) -> int:
    """Accept one connection and return its descriptor. Raises as `socket.accept` does."""
    fd, _ = listener._accept()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
    return fd  # pyright: ignore[reportUnknownVariableType]


def with_address(path: bytes, use: Callable[[bytes], None]) -> None:
    """Call `use` with the address of a Unix socket at `path`.

    The address uses a descriptor of the folder, because it may have at most 107 bytes.
    """
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
    try:
        use(b"/proc/self/fd/%d/%s" % (folder, os.path.basename(path)))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(folder)


def _ignore(number: int, frame: object) -> None:
    """A handler that does nothing, because the wake-up descriptor reports the signal."""


def wake_on(*numbers: int) -> int:
    """A descriptor from which each of these signals can be read as one byte when it arrives."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    for number in numbers:
        signal.signal(number, _ignore)
    signal.set_wakeup_fd(writing)
    return reading
