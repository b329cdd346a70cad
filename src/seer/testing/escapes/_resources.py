"""Attempts to use the host up. Those marked `machine` are stopped by what runs the jail."""

# Which call is made is the point here, so it is spelled out.
# ruff: noqa: PTH108
from __future__ import annotations

import mmap
import os
import resource
import signal
import time

from ._attempt import Facts, attempt


@attempt("resources", "Write a file larger than permitted")
def fill_file(facts: Facts) -> str | None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = f"{facts['workspace']}/big"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.pwrite(fd, b"x", facts["file_size"] + 1)
        return "written"
    finally:
        os.unlink(path)


@attempt("resources", "Open more files than permitted")
def open_many(facts: Facts) -> str | None:
    count = 0
    while count <= facts["open_files"]:
        os.dup(0)
        count += 1
    return f"{count} files"


@attempt("resources", "Raise one's own limits")
def raise_limits(facts: Facts) -> str | None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard + 1, hard + 1))
    return "raised"


@attempt("resources", "Leave a core dump")
def dump_core(facts: Facts) -> str | None:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    return f"up to {hard}" if hard != 0 else None


@attempt("resources", "Fill shared memory beyond its size")
def fill_shm(facts: Facts) -> str | None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    step = min(facts["file_size"], 4 << 20)
    names: list[str] = []
    try:
        while len(names) * step <= facts["shm"]:
            names.append(f"/dev/shm/bomb-{len(names)}")
            os.posix_fallocate(os.open(names[-1], os.O_CREAT | os.O_RDWR, 0o600), 0, step)
        return f"{len(names) * step} bytes"
    finally:
        for name in names:
            os.unlink(name)


@attempt("resources", "Start more processes than permitted", machine=True)
def fork_bomb(facts: Facts) -> str | None:
    children: list[int] = []
    try:
        while len(children) <= facts["processes"]:
            pid = os.fork()
            if pid == 0:
                time.sleep(30)
                os._exit(0)
            children.append(pid)
        return f"{len(children)} processes"
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@attempt("resources", "Use more memory than permitted", machine=True)
def memory_bomb(facts: Facts) -> str | None:
    size = facts["memory"] + (64 << 20)
    block = mmap.mmap(-1, size)
    for offset in range(0, size, mmap.PAGESIZE):
        block[offset] = 1
    # The watchdog looks a few times a second; what it misses for this long it would never see.
    time.sleep(5)
    return f"{size} bytes"
