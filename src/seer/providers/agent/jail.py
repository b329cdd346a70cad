"""Spawn the jail, and run programs in forks with only the descriptors that they need."""

from __future__ import annotations

import os

from . import wire
from .c_modules import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from seer.isolation._cgroup import Cgroup

    from .wire import Message


def spawn_jail(settings: Message, group: Cgroup | None) -> tuple[int, int]:
    """Start the jail's program. Returns its pid and the reading end of its standard error."""
    said, says = os.pipe()
    os.set_blocking(said, False)
    passed = wire.get_ints(settings, "pass_fds")
    pid = os.fork()
    if pid == 0:
        try:
            if group is not None:
                group.join()
            _pin(wire.get_int(settings, "cpus_milli", 0) / 1000)
            become(
                wire.get_list(settings, "argv"),
                wire.get_env(settings, "env"),
                stdin=os.open("/dev/null", os.O_RDONLY),
                stderr=says,
                passed=passed,
            )
        finally:
            os._exit(126)
    os.close(says)
    for fd in passed:
        os.close(fd)
    return pid, said


def _pin(cpus: float) -> None:
    """Use only as many cores as requested. Different machines start at different cores."""
    have = sorted(os.sched_getaffinity(0))
    wanted = int(-(-cpus // 1))
    if 0 < wanted < len(have):
        start = os.getpid() % len(have)
        os.sched_setaffinity(0, (have + have)[start : start + wanted])


def close_all_but(kept: set[int]) -> None:
    """Close every descriptor except the standard ones and `kept`."""
    start = 3
    for fd in sorted(kept):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, 1 << 20)


def become(
    argv: list[bytes], env: dict[bytes, bytes], *, stdin: int, stderr: int, passed: list[int]
) -> None:
    """In a fork: become a program in its own session. Returns only if that fails."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    os.dup2(stdin, 0)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    try:
        for fd in passed:
            os.set_inheritable(fd, True)
        close_all_but({*passed, stderr})
        os.dup2(stderr, 2)
        if stderr not in passed:
            os.close(stderr)
        os.execve(argv[0], argv, env)
    except OSError as error:
        os.write(2, b"%s: %s" % (argv[0], os.fsencode(str(error.strerror))))
