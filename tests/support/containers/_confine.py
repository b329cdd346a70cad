"""Give up the rights that vendors' containers lack, then become a program. A script.

Run as `python -I -S _confine.py PROGRAM ARGUMENT...`, or imported by the container's first process.
Afterwards root has the capabilities that container engines give by default: no mounts, no
namespaces. Landlock looks as if the kernel had none, as under gVisor.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

_KEPT = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31})
"""CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW SYS_CHROOT
MKNOD AUDIT_WRITE SETFCAP"""
_LANDLOCK = (444, 445, 446)
_CLONE3 = 435
_NUMBERS = {"x86_64": (0xC000003E, 56, 272), "aarch64": (0xC00000B7, 220, 97)}
_NEW_USER = 0x10000000


def confine() -> None:
    """Confine this process and all that it will start."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(*values: int) -> None:
        words = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:5]]
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), "prctl")

    # Loaded while this process still may do so without giving up set-user-id programs.
    program = b"".join(struct.pack("<HBBI", *item) for item in _filter())
    code = ctypes.create_string_buffer(program, len(program))
    head = (len(program) // 8).to_bytes(8, sys.byteorder)
    block = ctypes.create_string_buffer(
        head + ctypes.addressof(code).to_bytes(8, sys.byteorder), 16
    )
    prctl(22, 2, ctypes.addressof(block))
    last = int(open("/proc/sys/kernel/cap_last_cap").read())  # noqa: PTH123, SIM115
    for capability in range(last + 1):
        if capability not in _KEPT:
            prctl(24, capability)
    kept = sum(1 << number for number in _KEPT)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    header = struct.pack("<Ii", 0x20080522, 0)
    data = struct.pack("<6I", low, low, 0, high, high, 0)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _filter() -> list[tuple[int, int, int, int]]:
    architecture, clone, unshare = _NUMBERS[platform.machine()]
    refuse, missing, allow = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x7FFF0000
    code = [
        (0x20, 0, 0, 4),
        (0x15, 1, 0, architecture),
        (0x06, 0, 0, allow),
        (0x20, 0, 0, 0),
    ]
    for number in (*_LANDLOCK, _CLONE3):
        code += [(0x15, 0, 1, number), (0x06, 0, 0, missing)]
    for number in (clone, unshare):
        code += [
            (0x15, 0, 4, number),
            (0x20, 0, 0, 16),
            (0x45, 0, 1, _NEW_USER),
            (0x06, 0, 0, refuse),
            (0x06, 0, 0, allow),
        ]
    return [*code, (0x06, 0, 0, allow)]


if __name__ == "__main__":
    confine()
    os.execvp(sys.argv[1], sys.argv[1:])
