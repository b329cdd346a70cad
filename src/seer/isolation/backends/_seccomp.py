"""The jails' system-call filters, assembled as classic BPF. The backends load them.

A filter lists the calls that it refuses and allows the rest. Programs in a jail are ordinary
programs (numpy, torch, CUDA, git), so an allow-list would break with every new release of a C
library. A filter also refuses calls newer than `LAST_KNOWN`, calls of another architecture and
calls of the x32 mode. If the kernel reads only 32 bits of an argument, so does the filter.
Otherwise a program could evade the filter by setting higher bits.
"""

import errno
import platform
import struct
from collections.abc import Iterable
from functools import cache
from typing import Final, Literal

from seer.errors import IsolationError

FilterKind = Literal["namespaced", "shared"]
"""`namespaced`: the jail has its own namespaces. `shared`: it shares the host's."""

Instruction = tuple[int, int, int, int]

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_KILL: Final = 0x80000000

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 5, 0xF
_CLONE_NAMESPACES: Final = 0x7E020000
_CLONE_NEWNS: Final = 0x20000
_CLONE_NEWUSER: Final = 0x10000000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FS_SETFLAGS, _FS_SETXATTR, _FS_VERITY = 0x40086602, 0x401C5820, 0x40806685


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_DENIED: Final = {
    errno.EPERM: _names(
        # other processes
        "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp "
        "pidfd_getfd perf_event_open "
        # keyrings, mounts, namespaces
        "add_key request_key keyctl mount umount2 pivot_root chroot open_tree open_tree_attr "
        "move_mount fsopen fsconfig fsmount fspick mount_setattr statmount listmount unshare setns "
        # the kernel itself
        "bpf userfaultfd kexec_load kexec_file_load init_module finit_module delete_module swapon "
        "swapoff reboot quotactl quotactl_fd acct syslog settimeofday clock_settime sethostname "
        "setdomainname vhangup lookup_dcookie nfsservctl iopl ioperm modify_ldt uselib _sysctl "
        "name_to_handle_at open_by_handle_at fanotify_init fanotify_mark lsm_set_self_attr"
    ),
    # Programs try these first and fall back when the kernel seems too old for them.
    errno.ENOSYS: _names("clone3 io_uring_setup io_uring_enter io_uring_register"),
}

_DENIED_SHARED: Final = {
    # System V and POSIX queues, shared segments and file watches are shared with the host.
    errno.ENOSYS: _names(
        "shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semctl semtimedop mq_open "
        "mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr inotify_init "
        "inotify_init1 inotify_add_watch"
    ),
    errno.EOPNOTSUPP: _names(
        "getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr listxattrat "
        "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr "
        "removexattrat file_setattr"
    ),
}

# These allocate memory that need not be mapped by any process, so only a control group counts it.
_MEMORY_FILES: Final = _names("memfd_create memfd_secret shmget")

# Landlock does not cover these calls, which take any path. An error would break most programs that
# copy files, so the calls succeed without effect, as on a FAT disk mounted with `quiet`.
_NO_EFFECT: Final = _names(
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat"
)


def architecture() -> str:
    """This machine's architecture, as the tables name it.

    Raises:
        IsolationError: The architecture has no table.
    """
    machine = platform.machine()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if machine not in TABLES:
        raise IsolationError(
            f"no system-call table for the architecture {machine!r}; "
            f"jails work on {', '.join(sorted(TABLES))}"
        )
    return machine


@cache
def filter_program(
    kind: FilterKind,
    *,
    sockets: bool = False,
    internet: bool = True,
    enters: bool = False,
    users: bool = False,
    memory_files: bool = True,
    keep_cores: bool = False,
    freeze_metadata: bool = False,
    arch: str | None = None,
) -> bytes:
    """Assemble a filter, as an array of `struct sock_filter`.

    Args:
        kind: Whether the jail has namespaces of its own.
        sockets: For `shared`: permit network sockets and `connect` (the host's network).
        internet: For `namespaced`: permit internet sockets; otherwise only Unix sockets.
        enters: For `namespaced`: permit `chroot` and `unshare` of the mount namespace, which the
            jail's first programs need. The kernel refuses both without a capability.
        users: With `enters`: permit `unshare` and `setns` of the user namespace too. The jail's
            first programs then forbid further user namespaces.
        memory_files: Permit `memfd_create` and System V segments.
        keep_cores: Refuse `sched_setaffinity`.
        freeze_metadata: For `shared`: chmod, chown and utime have no effect. Needed if the jail's
            user owns files outside the jail.
        arch: The architecture; this machine's by default.
    """
    arch = arch or architecture()
    numbers = TABLES[arch]
    code: list[Instruction] = [
        _load(4),
        _jump_eq(AUDIT_ARCH[arch], 1, 0),
        _return(_KILL),
        _load(0),
        _jump_gt(LAST_KNOWN, 0, 1),
        _return(_ERRNO | errno.ENOSYS),
    ]

    def when(names: Iterable[str], body: list[Instruction]) -> None:
        for name in names:
            if name in numbers:
                code.extend((_jump_eq(numbers[name], 0, len(body)), *body))

    bad_ioctls = [_TIOCSTI, _TIOCLINUX]
    if kind == "shared":
        bad_ioctls += [_FS_SETFLAGS, _FS_SETXATTR, _FS_VERITY]
    when(["ioctl"], _refuse_values(1, bad_ioctls))
    when(["clone"], _refuse_bits(0, _CLONE_NAMESPACES))
    when(["personality"], _only_values(0, [0, 0xFFFFFFFF]))
    if kind == "namespaced" and not internet:
        when(["socket", "socketpair"], _only_values(0, [_AF_UNIX], code=errno.EAFNOSUPPORT))
    elif kind == "namespaced" or sockets:
        when(["socket", "socketpair"], _internet_sockets())
    else:
        when(["socket", "socketpair"], _unix_streams_only())
        when(["connect"], _refuse(errno.EACCES))
    if keep_cores:
        when(["sched_setaffinity"], _refuse(errno.EPERM))
    if kind == "shared":
        when(["prlimit64", "sched_setaffinity"], _only_values(0, [0]))
        # Threading libraries set the scheduling of their own threads by number. The filter cannot
        # distinguish these numbers from other processes', so the calls succeed without effect.
        scheduling = ["sched_setscheduler", "sched_setparam", "sched_setattr"]
        when(scheduling, _only_values(0, [0], code=0))
        when(["migrate_pages", "move_pages"], _only_values(0, [0]))
        # (which, who): the calling process or its group, never "all of this user's".
        when(["setpriority"], _only_pairs([0, 1]))
        when(["ioprio_set"], _only_pairs([1, 2]))
        for code_number, names in _DENIED_SHARED.items():
            when(names, _refuse(code_number))
        if freeze_metadata:
            when(_NO_EFFECT, [_return(_ERRNO)])
    if enters:
        permitted = [_CLONE_NEWNS, _CLONE_NEWUSER] if users else [_CLONE_NEWNS]
        when(["unshare"], _only_values(0, permitted))
        if users:
            when(["setns"], _only_values(1, [_CLONE_NEWUSER]))
        when(["chroot"], [_return(_ALLOW)])
    if not memory_files:
        when(_MEMORY_FILES, _refuse(errno.ENOSYS))
    for code_number, names in _DENIED.items():
        when(names, _refuse(code_number))
    code.append(_return(_ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _load(offset: int) -> Instruction:
    return (0x20, 0, 0, offset)


def _load_argument(index: int) -> Instruction:
    return _load(16 + 8 * index)


def _jump_eq(value: int, if_true: int, if_false: int) -> Instruction:
    return (0x15, if_true, if_false, value)


def _jump_gt(value: int, if_true: int, if_false: int) -> Instruction:
    return (0x25, if_true, if_false, value)


def _jump_bits(mask: int, if_true: int, if_false: int) -> Instruction:
    return (0x45, if_true, if_false, mask)


def _and(mask: int) -> Instruction:
    return (0x54, 0, 0, mask)


def _return(action: int) -> Instruction:
    return (0x06, 0, 0, action)


def _refuse(code: int) -> list[Instruction]:
    return [_return(_ERRNO | code)]


def _only_values(argument: int, values: list[int], *, code: int = errno.EPERM) -> list[Instruction]:
    tests = [_jump_eq(value, len(values) - i, 0) for i, value in enumerate(values)]
    return [_load_argument(argument), *tests, _return(_ERRNO | code), _return(_ALLOW)]


def _refuse_values(argument: int, values: list[int]) -> list[Instruction]:
    tests = [_jump_eq(value, len(values) - i, 0) for i, value in enumerate(values)]
    return [_load_argument(argument), *tests, _return(_ALLOW), _return(_ERRNO | errno.EPERM)]


def _refuse_bits(argument: int, mask: int) -> list[Instruction]:
    return [
        _load_argument(argument),
        _jump_bits(mask, 0, 1),
        _return(_ERRNO | errno.EPERM),
        _return(_ALLOW),
    ]


def _only_pairs(first: list[int]) -> list[Instruction]:
    rest = _only_values(1, [0])
    tests = [_jump_eq(value, len(first) - i, 0) for i, value in enumerate(first)]
    return [_load_argument(0), *tests, _return(_ERRNO | errno.EPERM), *rest]


def _internet_sockets() -> list[Instruction]:
    # NETLINK_ROUTE (protocol 0) is how getifaddrs() works; without capabilities it only reads.
    netlink = _only_values(2, [0], code=errno.EAFNOSUPPORT)
    families = [_AF_UNIX, _AF_INET, _AF_INET6]
    tests = [_jump_eq(family, 4 - i, 0) for i, family in enumerate(families)]
    return [
        _load_argument(0),
        *tests,
        _jump_eq(_AF_NETLINK, 2, 0),
        _return(_ERRNO | errno.EAFNOSUPPORT),
        _return(_ALLOW),
        *netlink,
    ]


def _unix_streams_only() -> list[Instruction]:
    # A datagram socket could send without `connect`.
    return [
        _load_argument(0),
        _jump_eq(_AF_UNIX, 1, 0),
        _return(_ERRNO | errno.EAFNOSUPPORT),
        _load_argument(1),
        _and(_SOCK_TYPE_MASK),
        _jump_eq(_SOCK_STREAM, 2, 0),
        _jump_eq(_SOCK_SEQPACKET, 1, 0),
        _return(_ERRNO | errno.ESOCKTNOSUPPORT),
        _return(_ALLOW),
    ]


# --- system calls --------------------------------------------------------------------------------

AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

LAST_KNOWN: Final = 469
"""The newest call that was examined. A filter answers every newer call with ENOSYS."""

_CALLS: Final[dict[str, tuple[int, int | None]]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "unshare": (272, 97),
    "setns": (308, 268),
    "clone": (56, 220),
    "clone3": (435, 435),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "personality": (135, 92),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "ioctl": (16, 29),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "lsm_set_self_attr": (460, 460),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "utimensat": (280, 88),
    "futimesat": (261, None),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "fgetxattr": (193, 10),
    "getxattrat": (464, 464),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "flistxattr": (196, 13),
    "listxattrat": (465, 465),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
}
"""The number of each call on x86_64 and on aarch64, which does not have the calls that `*at`
replaced."""

TABLES: Final = {
    "x86_64": {name: number for name, (number, _) in _CALLS.items()},
    "aarch64": {name: number for name, (_, number) in _CALLS.items() if number is not None},
}
"""The number of each call that the filters name, by architecture."""
