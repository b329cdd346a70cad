"""Attempts to break out, and system calls that Python does not wrap."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypedDict

Setting = Literal["bubblewrap-root", "bubblewrap-user", "landlock-root", "landlock-user"]
"""A backend, and who started the jail."""

Group = Literal["files", "processes", "network", "kernel", "resources", "session"]


class Facts(TypedDict):
    """The attempts' targets, planted on the host, and the jail's own mounts and limits.

    Every planted thing is open to the jail's user as far as file permissions go, so that only the
    jail can stop an attempt.
    """

    canary: str
    """A word that stands in everything planted; whoever can show it has read it."""
    secret_file: str
    secret_folder: str
    secret_link: str
    open_file: str
    """A file on the host that the jail's user owns."""
    open_folder: str
    package: str
    """Seer's own package."""
    host_user: str
    hostname: str
    pid: int
    """A process on the host, of the jail's user, with the canary in its environment."""
    tcp4: int
    tcp6: int
    udp: int
    address: str
    """An address of the host that is not loopback; empty where it has none."""
    unix_stream: str
    unix_datagram: str
    abstract: str
    shm_file: str
    shm_key: int
    queue: str
    terminal: str
    workspace: str
    """The jail's writable folder, as the jail sees it."""
    workspace_source: str
    """The same, on the host."""
    read_only_file: str
    """A file in a read-only mount, as the jail sees it; the jail's user owns it."""
    file_size: int
    open_files: int
    processes: int
    memory: int
    shm: int
    in_flight: int
    """Half of the descriptors that the user who plants may have in flight over sockets."""
    pending_signals: int
    """Half of the signals that this user may have pending."""
    source_mark: str
    """A word that stands only in the source of the interface `tools`, backwards; for sessions."""
    foreign_call: str
    """The id of a call that another session has made."""
    foreign_handle: str
    """A value that another session keeps in the interface."""


Function = Callable[[Facts], "str | None"]


@dataclass(frozen=True)
class Attempt:
    """One way to try to get out."""

    name: str
    group: Group
    goal: str
    """What the agent tries, as the security page says it."""
    function: Function
    """Gives evidence when it got out. None, an exception or a dead process mean it did not."""
    weak: frozenset[Setting]
    """Where it succeeds, and the security page says so."""
    machine: bool
    """Whether the machine around the jail stops it (a control group or the watchdog)."""
    fatal: bool
    """Whether the whole jail ends of it where it is stopped."""
    in_kernel: bool
    """Whether it must run in a session's kernel itself; the session tells what came of it."""


ATTEMPTS: dict[str, Attempt] = {}
"""Every attempt, by name, in the order of the security page."""


def attempt(
    group: Group,
    goal: str,
    *,
    weak: tuple[Setting, ...] = (),
    machine: bool = False,
    fatal: bool = False,
    in_kernel: bool = False,
) -> Callable[[Function], Function]:
    """Register a function as an attempt."""

    def register(function: Function) -> Function:
        name = function.__name__
        ATTEMPTS[name] = Attempt(
            name, group, goal, function, frozenset(weak), machine, fatal, in_kernel
        )
        return function

    return register


@dataclass
class _Libc:
    handle: ctypes.CDLL | None = field(default=None)


_libc = _Libc()

# (x86_64, aarch64); separate from the filter's own tables, so that a wrong number there shows.
_NUMBERS: dict[str, tuple[int, int | None]] = {
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "capset": (126, 91),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fanotify_init": (300, 262),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "inotify_init1": (294, 26),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "rt_sigqueueinfo": (129, 138),
    "setns": (308, 268),
    "shmat": (30, 196),
    "shmget": (29, 194),
    "swapon": (167, 224),
    "timer_create": (222, 107),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "ioprio_set": (251, 30),
}


def libc() -> ctypes.CDLL:
    """The C library, with errno kept."""
    if _libc.handle is None:
        _libc.handle = ctypes.CDLL(None, use_errno=True)
        _libc.handle.syscall.restype = ctypes.c_long
    return _libc.handle


def syscall(name: str, *arguments: object) -> int:
    """Make a system call by name.

    Raises:
        OSError: The kernel refused.
    """
    x86, arm = _NUMBERS[name]
    number = arm if platform.machine() == "aarch64" else x86
    if number is None:
        raise OSError(38, f"{name} does not exist on this machine")
    words = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result = libc().syscall(ctypes.c_long(number), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
