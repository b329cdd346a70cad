"""Fork and exec one command, as `subprocess` would, without its import."""

# pathlib would be most of what this process imports.
# ruff: noqa: PTH118, PTH123
from __future__ import annotations

import os

from .c_modules import signal
from .users import User, become_user

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"


def launch(
    argv: list[bytes],
    env: dict[bytes, bytes],
    cwd: bytes,
    *,
    streams: tuple[int, int, int],
    connectors: list[int],
    tty: bool,
    user: User | None = None,
) -> int:
    """Fork and exec; raises the child's own OSError when that fails."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(
            argv,
            env,
            cwd,
            streams=streams,
            connectors=connectors,
            tty=tty,
            user=user,
            report=writing,
        )
    os.close(writing)
    with open(reading, "rb") as report:
        failure = report.read()
    if not failure:
        return pid
    os.waitpid(pid, 0)
    number, _, path = failure.partition(b" ")
    raise OSError(int(number), os.strerror(int(number)), path)


def _become(
    argv: list[bytes],
    env: dict[bytes, bytes],
    cwd: bytes,
    *,
    streams: tuple[int, int, int],
    connectors: list[int],
    tty: bool,
    user: User | None,
    report: int,
) -> None:
    """In the forked child: turn into the command, or report why not. Never returns."""
    path = b""
    try:
        os.setsid()
        if tty:
            import fcntl
            import termios

            fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
        # Python ignores these two, and an ignored signal stays ignored across exec.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for target, source in enumerate(streams):
            os.dup2(source, target, inheritable=True)
        _close_all_but({report, *connectors})
        if user is not None:
            become_user(user)
        path = cwd
        os.chdir(cwd)
        path = argv[0]
        _exec(argv, env)
    except OSError as error:
        os.write(report, b"%d %s" % (error.errno or 0, path))
    finally:
        os._exit(127)


def _exec(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    refused: OSError | None = None
    for folder in env.get(b"PATH", DEFAULT_PATH).split(b":"):
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = refused or error
    raise refused or FileNotFoundError(2, os.strerror(2))


def _close_all_but(kept: set[int]) -> None:
    start = 3
    for fd in sorted(kept):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, 1 << 20)
