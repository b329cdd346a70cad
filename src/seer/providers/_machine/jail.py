"""The keeper's children: the jail, and where the machine has a network, the proxy beside it."""

from __future__ import annotations

import os

from . import tree, wire
from .native import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from seer.isolation._cgroup import Cgroup

    from .wire import Message


def spawn_jail(settings: Message, group: Cgroup | None) -> tuple[int, int]:
    """Start the jail's program; gives its pid and the reading end of its standard error."""
    said, says = os.pipe()
    os.set_blocking(said, False)
    passed = wire.get_ints(settings, "pass_fds")
    pid = os.fork()
    if pid == 0:
        try:
            if group is not None:
                group.join()
            _pin(wire.get_int(settings, "cpus_milli", 0) / 1000)
            _become(
                wire.get_list(settings, "argv"),
                wire.get_dict(settings, "env"),
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


def start_proxy(settings: Message) -> None:
    """Start the filtering proxy, which ends with this process."""
    proxy = wire.get_dict(settings, "proxy")
    if not proxy:
        return
    passed = wire.get_ints(proxy, "fds")
    life, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            tree.die_with_parent()
            os.close(held)
            null = os.open("/dev/null", os.O_WRONLY)
            _become(wire.get_list(proxy, "argv"), {}, stdin=life, stderr=null, passed=passed)
        finally:
            os._exit(126)
    os.close(life)
    for fd in passed:
        os.close(fd)


def _pin(cpus: float) -> None:
    """Keep to as many cores as were asked for; different machines start at different cores."""
    have = sorted(os.sched_getaffinity(0))
    wanted = int(-(-cpus // 1))
    if 0 < wanted < len(have):
        start = os.getpid() % len(have)
        os.sched_setaffinity(0, (have + have)[start : start + wanted])


def _become(argv: list[bytes], env: Message, *, stdin: int, stderr: int, passed: list[int]) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    os.dup2(stdin, 0)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    try:
        for fd in passed:
            os.set_inheritable(fd, True)
        start = 3
        for fd in sorted({*passed, stderr}):
            os.closerange(start, fd)
            start = fd + 1
        os.closerange(start, 1 << 20)
        values = {os.fsencode(name): value for name, value in env.items()}
        os.dup2(stderr, 2)
        if stderr not in passed:
            os.close(stderr)
        os.execve(argv[0], argv, values)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        os.write(2, b"%s: %s" % (argv[0], os.fsencode(str(error.strerror))))
