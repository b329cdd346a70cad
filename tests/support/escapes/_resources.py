"""Attempts to use up the host. The process that runs the jail stops those marked `machine`."""

# Which call is made is the point here, so it is spelled out.
# ruff: noqa: PTH108
from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import socket
import time

from ._attempt import Facts, attempt, libc, syscall


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
    for name in ("FSIZE", "NOFILE", "SIGPENDING", "MSGQUEUE", "NPROC", "CPU", "CORE"):
        number = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, (hard + 1, hard + 1))
                return f"raised {name}"
    return None


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
    # The watchdog looks a few times a second; memory that it misses for this long it would never
    # see.
    time.sleep(5)
    return f"{size} bytes"


@attempt("resources", "Hold memory that no process has mapped", machine=True, fatal=True)
def hide_memory(facts: Facts) -> str | None:
    size, held = facts["memory"] + (64 << 20), 0
    while held < size:
        block = os.memfd_create("hidden")
        os.posix_fallocate(block, 0, min(facts["file_size"], 64 << 20))
        held += min(facts["file_size"], 64 << 20)
    time.sleep(5)
    return f"{held} bytes"


@attempt(
    "resources", "Hold memory in segments that no process has attached", machine=True, fatal=True
)
def hide_segments(facts: Facts) -> str | None:
    libc().shmat.restype = ctypes.c_void_p
    size, held, step = facts["memory"] + (64 << 20), 0, 64 << 20
    segments: list[int] = []
    try:
        while held < size:
            segments.append(syscall("shmget", 0, step, 0o1600))
            address = syscall("shmat", segments[-1], 0, 0)
            ctypes.memset(address, 1, step)
            libc().shmdt(ctypes.c_void_p(address))
            held += step
        time.sleep(5)
    finally:
        for segment in segments:
            libc().shmctl(segment, 0, None)
    return f"{held} bytes"


@attempt("resources", "Hold more descriptors in flight than half of what the user may")
def hold_descriptors(facts: Facts) -> str | None:
    held = 0
    pairs: list[socket.socket] = []
    while held <= facts["in_flight"]:
        pairs += socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pairs[-2].setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while held <= facts["in_flight"]:
                socket.send_fds(pairs[-2], [b"x"], [0] * 250)
                held += 250
    return f"{held} descriptors"


@attempt("resources", "Have more signals pending than half of what the user may")
def pile_up_signals(facts: Facts) -> str | None:
    number = signal.SIGRTMIN + 1
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    info = (ctypes.c_int * 32)(number, 0, -1)
    for _ in range(facts["pending_signals"] + 1):
        syscall("rt_sigqueueinfo", os.getpid(), number, ctypes.byref(info))
    return f"{facts['pending_signals']} signals"


@attempt("resources", "Make more timers than half of what the user may")
def make_timers(facts: Facts) -> str | None:
    timer = ctypes.c_int()
    for _ in range(facts["pending_signals"] + 1):
        syscall("timer_create", 0, None, ctypes.byref(timer))
    return f"{facts['pending_signals']} timers"
