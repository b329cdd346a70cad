"""A script that jails itself, with Landlock, a system-call filter and rlimits.

Started as `python -I -S _launcher.py FD`, where FD is a memory file with a marshalled dictionary
(made by `_launch_order` under the same interpreter). It confines itself and becomes the jail's
first process. It imports little of the standard library, because every start pays for imports.

With a "stage" (root only) it also makes its own namespaces. They show only the system's folders
and, under one neutral folder, the policy's mounts. Any failure ends the process before a program of
the jail has run.
"""

# pathlib costs as much to import as everything else here together.
# ruff: noqa: PTH102, PTH110, PTH112, PTH120, PTH123, PTH211
from __future__ import annotations

import ctypes
import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from seer.isolation.backends._launch_order import Mask, Order, Rules, Stage

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE, _MOVE_MOUNT_EMPTY_PATH = 1, 4
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_FAILED = 125
_SIGKILL = 9  # the signal module would double the import time
_EMPTY = b"/etc/.empty"
_DEV_LINKS = (
    (b"pts/ptmx", b"/dev/ptmx"),
    (b"/proc/self/fd", b"/dev/fd"),
    (b"/proc/self/fd/0", b"/dev/stdin"),
    (b"/proc/self/fd/1", b"/dev/stdout"),
    (b"/proc/self/fd/2", b"/dev/stderr"),
)

# The rights that a rule for a file may grant: execute, write, read, truncate, ioctl.
_FILE_RIGHTS = 0b1100000000000111


class JailError(Exception):
    """A step failed; the message names it."""


def abi() -> int:
    """The kernel's Landlock version; 0 if the kernel lacks it or it is disabled."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1), 0)


class _Syscalls:
    """System calls that Python does not wrap. Errors name the step that failed."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def _check(self, result: int, step: str) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise JailError(f"{step}: {os.strerror(code)}")
        return result

    def call(self, step: str, number: int, *arguments: object) -> int:
        return self._check(self._libc.syscall(ctypes.c_long(number), *arguments), step)

    def prctl(self, step: str, option: int, *values: int) -> int:
        words = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
        return self._check(self._libc.prctl(ctypes.c_int(option), *words), step)

    def unshare(self, flags: int) -> int:
        return self._check(self._libc.unshare(ctypes.c_int(flags)), "making namespaces")

    def mount(
        self,
        source: bytes | None,
        target: bytes,
        *,
        kind: bytes | None = None,
        flags: int = 0,
        data: bytes | None = None,
    ) -> int:
        result = self._libc.mount(source, target, kind, ctypes.c_ulong(flags), data)
        return self._check(result, f"mounting {os.fsdecode(target)!r}")

    def sethostname(self, name: bytes) -> int:
        return self._check(self._libc.sethostname(name, len(name)), "naming the host")

    def take(self, source: bytes) -> int:
        """Make a detached copy of a folder or file, with all mounts in it."""
        flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
        path = ctypes.c_char_p(source)
        step = f"taking {os.fsdecode(source)!r}"
        return self.call(step, _OPEN_TREE, ctypes.c_int(_AT_FDCWD), path, ctypes.c_uint(flags))

    def put(self, fd: int, target: bytes) -> None:
        """Attach a detached copy at `target`."""
        self.call(
            f"mounting {os.fsdecode(target)!r}",
            _MOVE_MOUNT,
            ctypes.c_int(fd),
            ctypes.c_char_p(b""),
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(target),
            ctypes.c_uint(_MOVE_MOUNT_EMPTY_PATH),
        )
        os.close(fd)

    def protect(self, target: bytes, *, read_only: bool) -> None:
        """Set nosuid and nodev (and read-only) on a mount and all mounts below it."""
        attributes = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if read_only else 0)
        block = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
        self.call(
            f"protecting {os.fsdecode(target)!r}",
            _MOUNT_SETATTR,
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(target),
            ctypes.c_uint(_AT_RECURSIVE),
            ctypes.byref(block),
            ctypes.c_size_t(32),
        )


def _close_others(keep: Iterable[int]) -> None:
    """Close every descriptor except the standard ones and `keep`."""
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
        os.set_inheritable(fd, True)
    os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _make_place(path: bytes, is_folder: bool) -> None:
    """Make a mount point and the folders above it, open to all."""
    parent = os.path.dirname(path)
    if parent != b"/" and not os.path.isdir(parent):
        _make_place(parent, True)
    if is_folder:
        if not os.path.isdir(path):
            os.mkdir(path, 0o755)
    elif not os.path.exists(path):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def _cover(kernel: _Syscalls, masks: Iterable[Mask]) -> list[bytes]:
    """Hide these paths. Returns the covered folders, which are still writable."""
    folders: list[bytes] = []
    for path, is_folder in masks:
        if is_folder:
            flags = _MS_NOSUID | _MS_NODEV
            kernel.mount(b"tmpfs", path, kind=b"tmpfs", flags=flags, data=b"mode=755")
            folders.append(path)
        else:
            kernel.mount(_EMPTY, path, flags=_MS_BIND)
    return folders


def _stage(kernel: _Syscalls, stage: Stage) -> None:
    """Show only the system's folders, and the policy's mounts under the stage's root."""
    os.umask(0o022)
    flags = _MS_NOSUID | _MS_NODEV
    kernel.mount(b"none", b"/", flags=_MS_REC | _MS_PRIVATE)
    # Copy these first, because the covers hide them.
    sources = [kernel.take(bind["source"]) for bind in stage["binds"]]
    nodes = [kernel.take(path) for path in stage["devices"]]
    folders = [os.path.isdir(path) for path in stage["devices"]]
    for path in stage["covers"]:
        kernel.mount(b"tmpfs", path, kind=b"tmpfs", flags=flags, data=b"mode=755")
    for path, content in stage["files"]:
        _make_place(path, False)
        with open(path, "wb") as file:
            file.write(content)
    _make_place(_EMPTY, False)
    for target, path in (*stage["links"], *_DEV_LINKS):
        _make_place(os.path.dirname(path), True)
        os.symlink(target, path)
    covers = [*stage["covers"], *_cover(kernel, stage["masks"])]
    for fd, bind in zip(sources, stage["binds"], strict=True):
        _make_place(bind["target"], bind["is_folder"])
        kernel.put(fd, bind["target"])
        kernel.protect(bind["target"], read_only=not bind["writable"])
        covers += _cover(kernel, bind["masks"])
    for fd, path, is_folder in zip(nodes, stage["devices"], folders, strict=True):
        _make_place(path, is_folder)
        kernel.put(fd, path)
    for path, kind, options in (
        (b"/dev/shm", b"tmpfs", b"mode=1777,size=%d" % stage["shm"]),
        (b"/dev/pts", b"devpts", b"newinstance,ptmxmode=0666,mode=620"),
    ):
        _make_place(path, True)
        kernel.mount(kind, path, kind=kind, flags=_MS_NOSUID, data=options)
    for path in covers:
        # This comes last, because mounts inside a cover needed it to be writable. It is not
        # recursive, because writable mounts on top of a cover stay writable.
        kernel.mount(None, path, flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY | flags)


def _monitor(child: int) -> None:
    """Wait for the jail's first process and exit with its status."""
    os.closerange(0, 3)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _enter_namespaces(kernel: _Syscalls, stage: Stage, keep: Iterable[int]) -> int:
    """Unshare, stage, fork; returns only in the child, which is process 1 of the jail."""
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID
    kernel.unshare(flags | (_NEWNET if stage["own_network"] else 0))
    kernel.sethostname(stage["hostname"])
    _stage(kernel, stage)
    alive, held = os.pipe()
    child = os.fork()
    if child:
        os.close(alive)
        for fd in keep:
            os.close(fd)
        _monitor(child)
    os.close(held)
    kernel.mount(b"proc", b"/proc", kind=b"proc", flags=_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    # Move to a copy of this namespace, but keep this namespace's root. Files work as before, but
    # the mount tables, which show where each folder is on the host's disk, are empty. The monitor
    # keeps this namespace alive.
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    kernel.unshare(_NEWNS)
    os.fchdir(root)
    os.chroot(".")
    os.close(root)
    return alive


def _become(kernel: _Syscalls, uid: int) -> None:
    """Become an unprivileged user permanently."""
    number = 0
    while True:
        try:
            kernel.prctl("dropping capabilities", _PR_CAPBSET_DROP, number)
        except JailError:
            if number > 40:  # past the kernel's last capability
                break
            raise
        number += 1
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _restrict(kernel: _Syscalls, landlock: Rules) -> None:
    """Apply the Landlock rules to this process and its future children."""
    words = (ctypes.c_uint64 * 3)(landlock["fs"], landlock["net"], landlock["scoped"])
    size = ctypes.c_size_t(24)
    ruleset = kernel.call("making rules", _LANDLOCK_CREATE, ctypes.byref(words), size, 0)
    for path, rights in landlock["rules"]:
        fd = os.open(path, os.O_PATH)
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        # struct landlock_path_beneath_attr is packed: 8 + 4 bytes.
        attribute = rights.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)
        step = f"permitting {os.fsdecode(path)!r}"
        kernel.call(step, _LANDLOCK_ADD, ruleset, 1, ctypes.c_char_p(attribute), 0)
        os.close(fd)
    kernel.call("restricting", _LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _filter(kernel: _Syscalls, program: bytes) -> None:
    """Load the system-call filter: struct sock_fprog {unsigned short; pointer}."""
    code = ctypes.create_string_buffer(program, len(program))
    head = (len(program) // 8).to_bytes(8, sys.byteorder)
    pointer = ctypes.addressof(code).to_bytes(8, sys.byteorder)
    block = ctypes.create_string_buffer(head + pointer, 16)
    kernel.prctl("filtering system calls", _PR_SET_SECCOMP, 2, ctypes.addressof(block))


def _confine(order: Order) -> None:
    keep = order["keep"]
    _close_others(keep)
    if not sys.platform.startswith("linux"):
        os.setsid()
        _set_limits(order["rlimits"])
        os.chdir(order["cwd"])
        return
    kernel = _Syscalls()
    parent = os.getppid()
    kernel.prctl("tying to the parent", _PR_SET_PDEATHSIG, _SIGKILL)
    alive = None
    if order["stage"] is not None:
        alive = _enter_namespaces(kernel, order["stage"], keep)
    if os.getpid() != os.getsid(0):
        os.setsid()
    _set_limits(order["rlimits"])
    if order["uid"] is not None:
        _become(kernel, order["uid"])
    os.chdir(order["cwd"])
    # Changing the user cleared this setting. The next lines detect that the parent died in between.
    kernel.prctl("tying to the parent", _PR_SET_PDEATHSIG, _SIGKILL)
    if alive is not None:
        os.set_blocking(alive, False)
        try:
            if not os.read(alive, 1):
                os._exit(_FAILED)
        except BlockingIOError:
            os.close(alive)
    elif os.getppid() != parent:
        os._exit(_FAILED)
    if order["landlock"] is not None or order["filter"]:
        kernel.prctl("giving up new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    if order["landlock"] is not None:
        _restrict(kernel, order["landlock"])
    if order["filter"]:
        _filter(kernel, order["filter"])


def _set_limits(values: Mapping[int, int]) -> None:
    for number, value in values.items():
        resource.setrlimit(number, (value, value))


def main() -> None:
    """Read the order, confine, and become the program."""
    fd = int(sys.argv[1])
    with open(fd, "rb") as file:
        order: Order = marshal.loads(file.read())
    try:
        _confine(order)
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except (JailError, OSError) as error:
        os.write(2, f"seer: the jail could not be set up: {error}\n".encode())
        os._exit(_FAILED)


if __name__ == "__main__":
    main()
