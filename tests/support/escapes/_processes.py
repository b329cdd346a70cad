"""Attempts on the host's processes: see them, read them, signal them, slow them down."""

# Which call is made is the point here, so it is spelled out.
# ruff: noqa: PTH208
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
from pathlib import Path

from ._attempt import Facts, attempt, syscall


@attempt("processes", "List the host's processes")
def list_processes(facts: Facts) -> str | None:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if facts["canary"].encode() in Path("/proc", name, "cmdline").read_bytes():
                    return f"process {name}"
    return None


@attempt("processes", "Read a host process's command line")
def read_cmdline(facts: Facts) -> str | None:
    line = Path(f"/proc/{facts['pid']}/cmdline").read_bytes()
    return "it was read" if facts["canary"].encode() in line else None


@attempt("processes", "Read a host process's environment")
def read_environ(facts: Facts) -> str | None:
    values = Path(f"/proc/{facts['pid']}/environ").read_bytes()
    return "it was read" if facts["canary"].encode() in values else None


@attempt("processes", "Open a host process's memory")
def open_memory(facts: Facts) -> str | None:
    os.open(f"/proc/{facts['pid']}/mem", os.O_RDWR)
    return "opened"


@attempt("processes", "Open what a host process has open")
def open_descriptors(facts: Facts) -> str | None:
    pid = facts["pid"]
    return f"{os.listdir(f'/proc/{pid}/fd')}"


@attempt("processes", "Learn which process numbers the host uses", weak=("landlock-user",))
def probe_pid(facts: Facts) -> str | None:
    try:
        os.kill(facts["pid"], 0)
    except PermissionError:
        return "the number is in use"
    return "the number is in use"


@attempt("processes", "Signal a host process")
def signal_process(facts: Facts) -> str | None:
    os.kill(facts["pid"], signal.SIGCONT)
    return "signalled"


@attempt("processes", "Signal a host process through a descriptor of it")
def signal_by_descriptor(facts: Facts) -> str | None:
    signal.pidfd_send_signal(os.pidfd_open(facts["pid"]), signal.SIGCONT)
    return "signalled"


@attempt("processes", "Queue a signal with data to a host process")
def queue_signal(facts: Facts) -> str | None:
    info = ctypes.create_string_buffer(128)
    info[8:12] = (-1).to_bytes(4, "little", signed=True)  # si_code: SI_QUEUE
    syscall("rt_sigqueueinfo", facts["pid"], signal.SIGCONT, ctypes.byref(info))
    return "signalled"


@attempt("processes", "Signal a host process's whole group")
def signal_group(facts: Facts) -> str | None:
    os.killpg(os.getpgid(facts["pid"]), signal.SIGCONT)
    return "signalled"


@attempt("processes", "Trace a host process")
def trace_process(facts: Facts) -> str | None:
    syscall("ptrace", 0x4206, facts["pid"], 0, 0)
    return "traced"


@attempt("processes", "Trace anything at all")
def trace_self(facts: Facts) -> str | None:
    syscall("ptrace", 0, 0, 0, 0)
    return "traced"


@attempt("processes", "Read a host process's memory in one call")
def read_memory(facts: Facts) -> str | None:
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    syscall("process_vm_readv", facts["pid"], ctypes.byref(local), 1, ctypes.byref(local), 1, 0)
    return "read"


@attempt("processes", "Take an open file out of a host process")
def take_descriptor(facts: Facts) -> str | None:
    syscall("pidfd_getfd", os.pidfd_open(facts["pid"]), 0, 0)
    return "taken"


@attempt("processes", "Take an open file out of the jail's own first process")
def take_own_descriptor(facts: Facts) -> str | None:
    syscall("pidfd_getfd", os.pidfd_open(os.getppid()), 0, 0)
    return "taken"


@attempt("processes", "Compare kernel objects with a host process")
def compare_objects(facts: Facts) -> str | None:
    syscall("kcmp", facts["pid"], os.getpid(), 1, 0, 0)
    return "compared"


@attempt("processes", "Count events of a host process")
def count_events(facts: Facts) -> str | None:
    attributes = ctypes.create_string_buffer(128)
    attributes[4:8] = (128).to_bytes(4, "little")
    syscall("perf_event_open", ctypes.byref(attributes), facts["pid"], -1, -1, 0)
    return "counting"


@attempt("processes", "Change a host process's limits")
def limit_process(facts: Facts) -> str | None:
    resource.prlimit(facts["pid"], resource.RLIMIT_NOFILE, (1, 1))
    return "limited"


@attempt("processes", "Slow a host process down")
def renice_process(facts: Facts) -> str | None:
    os.setpriority(os.PRIO_PROCESS, facts["pid"], 19)
    return "slowed"


@attempt("processes", "Slow all processes of this user down")
def renice_user(facts: Facts) -> str | None:
    # In a jail with its own process numbers, only the jail is slowed; the host checks this.
    os.setpriority(os.PRIO_USER, os.getuid(), 5)
    return None


@attempt("processes", "Pin a host process to one processor")
def pin_process(facts: Facts) -> str | None:
    os.sched_setaffinity(facts["pid"], {0})
    return "pinned"


@attempt("processes", "Lower a host process's disk priority")
def lower_disk_priority(facts: Facts) -> str | None:
    syscall("ioprio_set", 1, facts["pid"], 3 << 13)
    return "lowered"


@attempt("processes", "Attach to a shared-memory segment of the host")
def attach_segment(facts: Facts) -> str | None:
    found = syscall("shmget", facts["shm_key"], 0, 0)
    syscall("shmat", found, 0, 0o10000)
    return "attached"


@attempt("processes", "Open a message queue of the host")
def open_queue(facts: Facts) -> str | None:
    syscall("mq_open", ctypes.c_char_p(facts["queue"].encode()), os.O_RDONLY, 0, 0)
    return "opened"


@attempt("processes", "Write to a terminal of the host")
def write_terminal(facts: Facts) -> str | None:
    os.write(os.open(facts["terminal"], os.O_WRONLY | os.O_NOCTTY), b"x")
    return facts["terminal"]


@attempt("processes", "Type into a terminal on somebody's behalf")
def type_into_terminal(facts: Facts) -> str | None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(0, 0x5412, b"x")
        return "typed"
    _, terminal = os.openpty()
    with contextlib.suppress(OSError):
        os.setsid()
    fcntl.ioctl(terminal, 0x540E, 0)
    fcntl.ioctl(terminal, 0x5412, b"x")
    return "typed"


@attempt("processes", "Learn the host's name", weak=("landlock-user",))
def read_hostname(facts: Facts) -> str | None:
    return os.uname().nodename if os.uname().nodename == facts["hostname"] else None


@attempt("processes", "Have the kernel signal a host process when a pipe fills")
def signal_by_pipe(facts: Facts) -> str | None:
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, facts["pid"])
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    os.write(writer, b"x")
    return None  # The host checks whether the signal arrived: it would have ended the process.
