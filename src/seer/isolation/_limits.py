"""The resource limits of a jail's processes that rlimits can express.

Limits on the memory and process count of a whole tree need a cgroup or a watchdog; see `_cgroup`.

The kernel counts several of these per user. Jails that root starts have their own users. Jails that
an ordinary user starts share that user, so together they get only a part of the user's limits
(`JailLimits.share`). The rest stays for the user's other programs.
"""

import resource

from seer.isolation._policy import JailLimits

_OPTIONS = {
    resource.RLIMIT_CORE: "core",
    resource.RLIMIT_CPU: "cpu",
    resource.RLIMIT_FSIZE: "fsize",
    resource.RLIMIT_MSGQUEUE: "msgqueue",
    resource.RLIMIT_NOFILE: "nofile",
    resource.RLIMIT_NPROC: "nproc",
    resource.RLIMIT_SIGPENDING: "sigpending",
}
_PENDING_SIGNALS = 4096
"""The limit of one jail, if the kernel counts its signals separately. POSIX timers count too."""
_LEAST_OPEN_FILES = 256
_OWNERS_SHARE = 0.5
"""The share from which on a jail is assumed to run its owner's code, not an agent's."""
_MACHINES = 32
"""If a limit can only be set per jail, this many jails together use up the share."""


def rlimits(limits: JailLimits, *, own_count: bool, own_user: bool) -> dict[int, int]:
    """The soft and hard limit for each resource, never above what this process may set.

    Args:
        limits: The policy's limits.
        own_count: Whether the kernel counts processes and pending signals for this jail alone: its
            user is its own, or it has a user namespace.
        own_user: Whether its user is its own.
    """
    wanted: dict[int, int | None] = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_FSIZE: limits.file_size,
        # This also limits the descriptors that the user has in flight over sockets when this jail
        # sends another one.
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_SIGPENDING: _PENDING_SIGNALS if own_count else None,
    }
    if own_count:
        wanted[resource.RLIMIT_NPROC] = limits.processes
    shared = shared_rlimits(limits)
    if own_user:
        # Of these resources, all users share only the process ids.
        shared = {resource.RLIMIT_NPROC: shared[resource.RLIMIT_NPROC]}
    else:
        shared[resource.RLIMIT_NOFILE] = _shared_open_files(limits)
        if own_count and resource.RLIMIT_MSGQUEUE in shared:
            # One jail must not use up the share.
            shared[resource.RLIMIT_MSGQUEUE] //= 2
    for number, value in shared.items():
        given = wanted.get(number)
        wanted[number] = value if given is None else min(value, given)
    return {
        number: min(value, _hard(number)) for number, value in wanted.items() if value is not None
    }


def _shared_open_files(limits: JailLimits) -> int:
    """A limit that leaves descriptors to the user's other programs.

    An owner's interface passes few descriptors, but may need many open files.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = soft if limits.share < _OWNERS_SHARE else _hard(resource.RLIMIT_NOFILE)
    return max(int(most * limits.share), _LEAST_OPEN_FILES)


def shared_rlimits(limits: JailLimits) -> dict[int, int]:
    """The limits, counted by the kernel per user, that all jails of this user share.

    If they are set before a user namespace is created, they bound the whole user's usage whenever a
    program in the namespace needs more.
    """
    most = {
        number: resource.getrlimit(number)[1]
        for number in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE)
    }
    # The kernel may have fewer process ids than the user may use. When ids run out, not even root
    # can start a process.
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:  # noqa: PTH123 (hot path)
        ids = int(file.read())
    most[resource.RLIMIT_NPROC] = min(_hard(resource.RLIMIT_NPROC), ids)
    return {
        number: int(value * limits.share)
        for number, value in most.items()
        if value != resource.RLIM_INFINITY
    }


def namespace_limits(limits: JailLimits) -> dict[str, int]:
    """Settings under /proc/sys/user of a jail's own user namespace."""
    found: dict[str, int] = {}
    for name in ("max_inotify_instances", "max_inotify_watches"):
        with open(f"/proc/sys/user/{name}", encoding="ascii") as file:  # noqa: PTH123 (hot path)
            found[name] = max(int(int(file.read()) * limits.share) // _MACHINES, 1)
    return found


def prlimit_arguments(values: dict[int, int]) -> list[str]:
    """The options of the `prlimit` program for these values."""
    return [f"--{_OPTIONS[number]}={value}:{value}" for number, value in values.items()]


def _hard(number: int) -> int:
    value = resource.getrlimit(number)[1]
    return value if value != resource.RLIM_INFINITY else 1 << 62
