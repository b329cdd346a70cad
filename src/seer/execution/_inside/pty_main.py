"""Run a program on a terminal of its own, in a session's machine.

Standard input carries frames: a kind (`i` input, `s` size), a length of four bytes, a payload.
Standard output is what the program writes to its terminal. When standard input ends, the program
is hung up.
"""

import contextlib
import errno
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios


def main() -> None:
    """Usage: pty_main.py ROWS COLUMNS PROGRAM [ARGUMENT ...]"""
    rows, columns = int(sys.argv[1]), int(sys.argv[2])
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(sys.argv[3], sys.argv[3:])
    resize(terminal, rows, columns)
    serve(terminal)
    os.close(terminal)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGHUP)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


def serve(terminal: int) -> None:
    """Pass input and output until the program or the controller is gone."""
    held = bytearray()
    while True:
        ready, _, _ = select.select([0, terminal], [], [])
        if terminal in ready:
            try:
                data = os.read(terminal, 65536)
            except OSError as error:
                if error.errno != errno.EIO:  # what Linux says when the last writer is gone
                    raise
                return
            if not data:
                return
            write_all(1, data)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            held += data
            obey(held, terminal)


def obey(held: bytearray, terminal: int) -> None:
    """Act on every whole frame, and leave the rest."""
    while len(held) >= 5:
        length = int.from_bytes(held[1:5], "big")
        if len(held) < 5 + length:
            return
        kind, payload = bytes(held[:1]), bytes(held[5 : 5 + length])
        del held[: 5 + length]
        if kind == b"s":
            resize(terminal, *struct.unpack(">HH", payload))
        else:
            write_all(terminal, payload)


def resize(terminal: int, rows: int, columns: int) -> None:
    """Give the terminal a size; the program gets SIGWINCH."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def write_all(fd: int, data: bytes) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()
