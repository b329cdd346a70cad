"""Resource limits of a jail's processes, as far as rlimits carry them.

Memory and process counts of a whole tree need a cgroup or a watchdog; see `_cgroup`.
"""

import resource

from seer.isolation._policy import Limits

_OPTIONS = {
    resource.RLIMIT_CORE: "core",
    resource.RLIMIT_CPU: "cpu",
    resource.RLIMIT_FSIZE: "fsize",
    resource.RLIMIT_NOFILE: "nofile",
    resource.RLIMIT_NPROC: "nproc",
}


def rlimits(limits: Limits, *, count_processes: bool) -> dict[int, int]:
    """Resource -> value for soft and hard limit, never above what this process may set.

    Args:
        limits: The policy's limits.
        count_processes: Whether the jail's user is its own, so that RLIMIT_NPROC, which counts
            all processes of a user, counts the jail alone.
    """
    wanted: dict[int, int | None] = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_FSIZE: limits.file_size,
        resource.RLIMIT_NOFILE: limits.open_files,
    }
    if count_processes:
        wanted[resource.RLIMIT_NPROC] = limits.processes
    return {
        number: _at_most(value, resource.getrlimit(number)[1])
        for number, value in wanted.items()
        if value is not None
    }


def prlimit_arguments(values: dict[int, int]) -> list[str]:
    """The options of the `prlimit` program for these values."""
    return [f"--{_OPTIONS[number]}={value}:{value}" for number, value in values.items()]


def _at_most(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
