"""The filters, run in an interpreter of classic BPF, for every supported architecture.

It runs the filter programs themselves, without a kernel of each architecture.
"""

import errno
import struct
from collections.abc import Sequence

import pytest

from seer.isolation.backends._seccomp import (
    AUDIT_ARCH,
    LAST_KNOWN,
    TABLES,
    FilterKind,
    filter_program,
)

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCHITECTURES = sorted(TABLES)
KINDS: tuple[FilterKind, ...] = ("namespaced", "shared")
READ = {"x86_64": 0, "aarch64": 63}


def answer(program: bytes, arch: int, number: int, arguments: Sequence[int] = ()) -> int:
    """What the filter returns for a call."""
    values = [*arguments, *[0] * 6][:6]
    data = struct.pack("<IIQ6Q", number, arch, 0, *(value & (1 << 64) - 1 for value in values))
    code = list(struct.iter_unpack("<HBBI", program))
    position = accumulator = 0
    while True:
        operation, if_true, if_false, value = code[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x06:
            return value
        else:
            holds = {
                0x15: accumulator == value,
                0x25: accumulator > value,
                0x45: bool(accumulator & value),
            }[operation]
            position += if_true if holds else if_false


def error(code: int) -> int:
    """The answer that makes a call fail with `code`."""
    return 0x00050000 | code


@pytest.fixture(params=ARCHITECTURES)
def arch(request: pytest.FixtureRequest) -> str:
    """Every architecture."""
    return request.param


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> FilterKind:
    """Every kind of filter."""
    return request.param


def ask(arch: str, program: bytes, name: str, *arguments: int) -> int:
    """The answer to a named call."""
    return answer(program, AUDIT_ARCH[arch], TABLES[arch][name], arguments)


def test_ordinary_calls_pass(arch: str, kind: FilterKind) -> None:
    program = filter_program(kind, arch=arch)
    assert answer(program, AUDIT_ARCH[arch], READ[arch]) == ALLOW


def test_calls_of_another_architecture_kill(arch: str, kind: FilterKind) -> None:
    program = filter_program(kind, arch=arch)
    for other in (0x40000003, 0x40000028, *(v for k, v in AUDIT_ARCH.items() if k != arch)):
        assert answer(program, other, READ[arch]) == KILL


def test_unknown_and_x32_calls_do_not_exist(arch: str, kind: FilterKind) -> None:
    program = filter_program(kind, arch=arch)
    for number in (LAST_KNOWN + 1, 1000, 0x40000000, 0x40000000 | READ[arch], 0xFFFFFFFF):
        assert answer(program, AUDIT_ARCH[arch], number) == error(errno.ENOSYS)


@pytest.mark.parametrize(
    "name",
    [
        *("ptrace", "process_vm_readv", "pidfd_getfd", "kcmp", "perf_event_open", "add_key"),
        *(
            "keyctl",
            "mount",
            "umount2",
            "pivot_root",
            "chroot",
            "open_tree",
            "fsopen",
            "move_mount",
        ),
        *("mount_setattr", "unshare", "setns", "bpf", "userfaultfd", "kexec_load", "init_module"),
        *("finit_module", "swapon", "reboot", "quotactl", "acct", "syslog", "open_by_handle_at"),
        *("name_to_handle_at", "fanotify_init", "sethostname", "settimeofday"),
    ],
)
def test_dangerous_calls_are_refused(arch: str, kind: FilterKind, name: str) -> None:
    assert ask(arch, filter_program(kind, arch=arch), name) == error(errno.EPERM)


@pytest.mark.parametrize("name", ["clone3", "io_uring_setup", "io_uring_enter"])
def test_calls_with_a_fallback_seem_not_to_exist(arch: str, kind: FilterKind, name: str) -> None:
    assert ask(arch, filter_program(kind, arch=arch), name) == error(errno.ENOSYS)


def test_threads_and_forks_pass_but_no_namespaces(arch: str, kind: FilterKind) -> None:
    program = filter_program(kind, arch=arch)
    thread, fork = 0x3D0F00, 0x1200011
    assert ask(arch, program, "clone", thread) == ask(arch, program, "clone", fork) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert ask(arch, program, "clone", flag | fork) == error(errno.EPERM)


def test_typing_into_a_terminal_is_refused_however_it_is_spelled(
    arch: str, kind: FilterKind
) -> None:
    program = filter_program(kind, arch=arch)
    for request in (0x5412, 0x541C, 0x5412 | 1 << 32, 0x5412 | 0xFFFFFFFF << 32):
        assert ask(arch, program, "ioctl", 0, request) == error(errno.EPERM)
    assert ask(arch, program, "ioctl", 0, 0x5413) == ALLOW


def test_personality_can_be_asked_but_not_changed(arch: str, kind: FilterKind) -> None:
    program = filter_program(kind, arch=arch)
    for value in (0, 0xFFFFFFFF):
        assert ask(arch, program, "personality", value) == ALLOW
    for value in (0x40000, 0x400000, 8):
        assert ask(arch, program, "personality", value) == error(errno.EPERM)


def test_a_jail_with_its_own_network_has_internet_sockets_only(arch: str) -> None:
    program = filter_program("namespaced", arch=arch)
    for family in (1, 2, 10):
        assert ask(arch, program, "socket", family, 1, 0) == ALLOW
    assert ask(arch, program, "socket", 16, 3, 0) == ALLOW
    for family, protocol in ((16, 9), (16, 15), (17, 0), (38, 0), (40, 0), (44, 0), (31, 0)):
        refused = error(errno.EAFNOSUPPORT)
        assert ask(arch, program, "socket", family, 3, protocol) == refused
        assert ask(arch, program, "socket", family | 1 << 32, 3, protocol) == refused
    assert ask(arch, program, "connect", 3, 0, 0) == ALLOW


def test_a_jail_that_shares_the_host_has_unix_streams_only(arch: str) -> None:
    program = filter_program("shared", arch=arch)
    flags = 0o2000000 | 0o4000
    for kind in (1, 5, 1 | flags):
        assert ask(arch, program, "socket", 1, kind, 0) == ALLOW
        assert ask(arch, program, "socketpair", 1, kind, 0) == ALLOW
    for kind in (2, 3, 2 | flags):
        assert ask(arch, program, "socket", 1, kind, 0) == error(errno.ESOCKTNOSUPPORT)
        assert ask(arch, program, "socketpair", 1, kind, 0) == error(errno.ESOCKTNOSUPPORT)
    for family in (2, 10, 16, 17, 40):
        assert ask(arch, program, "socket", family, 1, 0) == error(errno.EAFNOSUPPORT)
    assert ask(arch, program, "connect", 3, 0, 0) == error(errno.EACCES)
    assert ask(arch, filter_program("shared", sockets=True, arch=arch), "connect", 3) == ALLOW


def test_a_jail_that_shares_the_host_cannot_reach_other_processes_settings(arch: str) -> None:
    program = filter_program("shared", arch=arch)
    for name in ("prlimit64", "sched_setaffinity", "move_pages"):
        assert ask(arch, program, name, 0) == ALLOW
        assert ask(arch, program, name, 4242) == error(errno.EPERM)
    for name in ("sched_setscheduler", "sched_setparam", "sched_setattr"):
        assert ask(arch, program, name, 0) == ALLOW
        assert ask(arch, program, name, 4242) == error(0), "it must have no effect"
    assert ask(arch, program, "setpriority", 0, 0, 5) == ALLOW
    for which, who in ((0, 4242), (2, 0), (2, 1000)):
        assert ask(arch, program, "setpriority", which, who, 5) == error(errno.EPERM)


def test_changing_modes_and_times_has_no_effect_where_it_would_reach_outside(arch: str) -> None:
    frozen = filter_program("shared", freeze_metadata=True, arch=arch)
    free = filter_program("shared", arch=arch)
    for name in ("fchmod", "fchmodat", "fchownat", "utimensat"):
        assert ask(arch, frozen, name) == error(0)
        assert ask(arch, free, name) == ALLOW
    for name in ("setxattr", "fsetxattr", "removexattr"):
        assert ask(arch, frozen, name) == error(errno.EOPNOTSUPP)
    for name in ("shmget", "mq_open", "inotify_init1"):
        assert ask(arch, frozen, name) == error(errno.ENOSYS)
