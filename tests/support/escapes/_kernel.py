"""Attempts on the kernel: namespaces, mounts, privileges, devices, odd calls."""

# Which call is made is the point here, so it is spelled out.
# ruff: noqa: PTH120
from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import stat
import subprocess
import time
from pathlib import Path

from ._attempt import Facts, attempt, libc, syscall

_NEWUSER, _NEWNS, _NEWPID, _NEWNET = 0x10000000, 0x20000, 0x20000000, 0x40000000


@attempt("kernel", "Make a user namespace")
def unshare_user(facts: Facts) -> str | None:
    syscall("unshare", _NEWUSER)
    return "made"


@attempt("kernel", "Make mount, process and network namespaces")
def unshare_others(facts: Facts) -> str | None:
    for flag in (_NEWNS, _NEWPID, _NEWNET):
        with contextlib.suppress(OSError):
            syscall("unshare", flag)
            return f"{flag:#x}"
    return None


@attempt("kernel", "Start a process in a new user namespace")
def clone_user(facts: Facts) -> str | None:
    pid = syscall("clone", _NEWUSER | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return "started"


@attempt("kernel", "Start a process in a new namespace with the newer call")
def clone3_user(facts: Facts) -> str | None:
    arguments = (ctypes.c_uint64 * 11)(_NEWUSER, 0, 0, 0, 17)
    pid = syscall("clone3", ctypes.byref(arguments), 88)
    if pid == 0:
        os._exit(0)
    return "started"


@attempt("kernel", "Enter another process's namespaces")
def enter_namespace(facts: Facts) -> str | None:
    for pid in (1, facts["pid"]):
        for kind in ("mnt", "pid", "user", "uts", "ipc"):
            with contextlib.suppress(OSError):
                syscall("setns", os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY), 0)
                return kind
    return None


@attempt("kernel", "Mount a file system")
def mount_tmpfs(facts: Facts) -> str | None:
    target = facts["workspace"].encode()
    syscall(
        "mount", ctypes.c_char_p(b"t"), ctypes.c_char_p(target), ctypes.c_char_p(b"tmpfs"), 0, 0
    )
    return "mounted"


@attempt("kernel", "Make a read-only mount writable")
def remount_writable(facts: Facts) -> str | None:
    target = ctypes.c_char_p(os.path.dirname(facts["read_only_file"]).encode())
    syscall("mount", ctypes.c_char_p(b"none"), target, 0, 32 | 4096, 0)
    return "remounted"


@attempt("kernel", "Unmount a cover to see what is beneath")
def unmount_cover(facts: Facts) -> str | None:
    for path in (b"/usr/local", b"/proc", b"/dev", b"/etc", b"/tmp"):
        with contextlib.suppress(OSError):
            syscall("umount2", ctypes.c_char_p(path), 2)
            return path.decode()
    return None


@attempt("kernel", "Mount with the newer calls")
def mount_new_api(facts: Facts) -> str | None:
    with contextlib.suppress(OSError):
        syscall("fsopen", ctypes.c_char_p(b"tmpfs"), 0)
        return "fsopen"
    syscall("open_tree", -100, ctypes.c_char_p(b"/"), 1)
    return "open_tree"


@attempt("kernel", "Change the root folder")
def change_root(facts: Facts) -> str | None:
    path = ctypes.c_char_p(facts["workspace"].encode())
    with contextlib.suppress(OSError):
        syscall("pivot_root", path, path)
        return "pivot_root"
    syscall("chroot", path)
    return "chroot"


@attempt("kernel", "Become root")
def become_root(facts: Facts) -> str | None:
    for function in (os.setuid, os.setgid, os.seteuid):
        with contextlib.suppress(OSError):
            function(0)
            return function.__name__
    return None


@attempt("kernel", "Give oneself a capability")
def raise_capabilities(facts: Facts) -> str | None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(1 << 21, 1 << 21, 0, 0, 0, 0)
    syscall("capset", ctypes.byref(header), ctypes.byref(data))
    return "raised"


@attempt("kernel", "Gain privileges from a set-user-ID program")
def run_setuid(facts: Facts) -> str | None:
    if libc().prctl(39, 0, 0, 0, 0) != 1:
        return "new privileges can be gained"
    for command in (["su", "-c", "true"], ["sudo", "-n", "true"]):
        with contextlib.suppress(OSError):
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10
            )
            if done.returncode == 0:
                return command[0]
    return None


@attempt("kernel", "Make a set-user-ID program for others to run")
def make_setuid(facts: Facts) -> str | None:
    path = Path(facts["workspace"], "setuid")
    path.write_bytes(b"#!/bin/sh\n")
    path.chmod(0o4755)
    owner = path.stat()
    return "owned by root" if owner.st_mode & stat.S_ISUID and owner.st_uid == 0 else None


@attempt("kernel", "Make a device node")
def make_device(facts: Facts) -> str | None:
    path = f"{facts['workspace']}/disk"
    os.mknod(path, stat.S_IFBLK | 0o666, os.makedev(254, 0))
    return path


@attempt("kernel", "Open the machine's disks and memory")
def open_devices(facts: Facts) -> str | None:
    for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "kvm", "fuse", "uinput"):
        with contextlib.suppress(OSError):
            os.open(f"/dev/{name}", os.O_RDONLY)
            return f"/dev/{name}"
    return None


@attempt("kernel", "Read the kernel's memory image")
def read_kcore(facts: Facts) -> str | None:
    return f"{len(os.read(os.open('/proc/kcore', os.O_RDONLY), 16))} bytes"


@attempt("kernel", "Read the kernel's messages")
def read_kernel_log(facts: Facts) -> str | None:
    return f"{syscall('syslog', 10, 0, 0)} bytes"


@attempt("kernel", "Change the kernel's settings")
def write_settings(facts: Facts) -> str | None:
    for name in ("kernel/core_pattern", "kernel/hostname", "kernel/modprobe", "vm/drop_caches"):
        with contextlib.suppress(OSError):
            os.open(f"/proc/sys/{name}", os.O_WRONLY)
            return name
    return None


@attempt("kernel", "Trigger emergency actions of the kernel")
def trigger_sysrq(facts: Facts) -> str | None:
    os.open("/proc/sysrq-trigger", os.O_WRONLY)
    return "opened"


@attempt("kernel", "Change control groups")
def write_cgroups(facts: Facts) -> str | None:
    for path in Path("/sys/fs/cgroup").rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            os.open(path, os.O_WRONLY)
            return str(path)
    return None


@attempt("kernel", "Make an io_uring, which would get around the filter")
def make_ring(facts: Facts) -> str | None:
    syscall("io_uring_setup", 4, ctypes.byref(ctypes.create_string_buffer(120)))
    return "made"


@attempt("kernel", "Load a program into the kernel (bpf)")
def load_bpf(facts: Facts) -> str | None:
    attributes = (ctypes.c_uint32 * 32)(2, 4, 4, 1)
    syscall("bpf", 0, ctypes.byref(attributes), 128)
    return "made a map"


@attempt("kernel", "Handle page faults oneself (userfaultfd)")
def handle_faults(facts: Facts) -> str | None:
    syscall("userfaultfd", 1)
    return "opened"


@attempt("kernel", "Use the kernel's keyrings")
def use_keyrings(facts: Facts) -> str | None:
    with contextlib.suppress(OSError):
        return f"keyring {syscall('keyctl', 0, -4, 0)}"
    name = ctypes.c_char_p(b"user"), ctypes.c_char_p(b"seer"), ctypes.c_char_p(b"x")
    return f"key {syscall('add_key', *name, 1, -3)}"


@attempt("kernel", "Load a kernel module")
def load_module(facts: Facts) -> str | None:
    # EFAULT or ENOEXEC would mean that the call was let through to look at the (bad) module.
    return _reaches_kernel("init_module", 0, 0, ctypes.c_char_p(b""))


@attempt("kernel", "Start another kernel")
def load_kernel(facts: Facts) -> str | None:
    return _reaches_kernel("kexec_load", 0, 0, 0, 0)


@attempt("kernel", "Restart the machine")
def restart_machine(facts: Facts) -> str | None:
    syscall("reboot", 0xFEE1DEAD, 672274793, 0, 0)  # only forbids Ctrl-Alt-Del
    return "permitted"


@attempt("kernel", "Switch swapping, accounting or quotas")
def switch_swapping(facts: Facts) -> str | None:
    path = ctypes.c_char_p(facts["workspace"].encode())
    for name, arguments in (
        ("swapon", (path, 0)),
        ("acct", (0,)),
        ("quotactl", (0x800001, 0, 0, 0)),
    ):
        with contextlib.suppress(OSError):
            syscall(name, *arguments)
            return name
    return None


@attempt("kernel", "Set the clock")
def set_clock(facts: Facts) -> str | None:
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    return "set"


@attempt("kernel", "Rename the host")
def rename_host(facts: Facts) -> str | None:
    name = os.uname().nodename.encode()
    if libc().sethostname(name, len(name)) == 0:
        return "renamed"
    return None


@attempt("kernel", "Switch off address randomisation")
def change_personality(facts: Facts) -> str | None:
    syscall("personality", 0x0040000)
    return "changed"


@attempt("kernel", "Touch input and output ports")
def touch_ports(facts: Facts) -> str | None:
    with contextlib.suppress(OSError):
        syscall("ioperm", 0x80, 1, 1)
        return "ioperm"
    syscall("iopl", 3)
    return "iopl"


@attempt("kernel", "Change the processor's segment table")
def change_segments(facts: Facts) -> str | None:
    entry = ctypes.create_string_buffer(16)
    syscall("modify_ldt", 1, ctypes.byref(entry), 16)
    return "changed"


@attempt("kernel", "Call the kernel in another mode of the processor (32 bit)")
def call_in_32_bit(facts: Facts) -> str | None:
    if platform.machine() != "x86_64":
        return None
    # mov eax, 20 (getpid); int 0x80; ret
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    return f"answered {answer}" if answer > 0 else None


@attempt("kernel", "Call the kernel in the x32 mode")
def call_in_x32(facts: Facts) -> str | None:
    if platform.machine() != "x86_64":
        return None
    answer = libc().syscall(ctypes.c_long(0x40000000 | 39))
    return f"answered {answer}" if answer > 0 else None


@attempt("kernel", "Use a call newer than the filter")
def call_unknown(facts: Facts) -> str | None:
    for number in range(470, 520):
        if libc().syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0) >= 0:
            return f"call {number}"
        if ctypes.get_errno() != 38:
            return f"call {number} exists"
    return None


def _reaches_kernel(name: str, *arguments: object) -> str | None:
    try:
        syscall(name, *arguments)
    except OSError as error:
        return None if error.errno in (1, 38) else f"answered {error.strerror}"
    return "permitted"
