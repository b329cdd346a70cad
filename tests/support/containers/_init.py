"""The first process of a container: makes its root, runs its command, and ends with it.

Runs under a bare interpreter (standard library only), already in namespaces of its own. Reads its
orders as JSON from standard input; descriptor 3 is a pipe whose other end the starter holds: when
that end closes, the container ends. Descriptor 4 is told "ready" once the command runs.
"""

# pathlib would be most of this process's imports.
# ruff: noqa: PTH102, PTH103, PTH112, PTH120, PTH123, PTH211
import ctypes
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from typing import TypedDict

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def _mount(source: str, target: str, kind: str, options: str = "", flags: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs(target, exist_ok=True)
    done = libc.mount(
        source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None
    )
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind or 'bind'} {source}: {os.strerror(number)}", target)


def _bind(source: str, target: str, *, read_only: bool = False) -> None:
    if not os.path.isdir(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "a").close()
    libc = ctypes.CDLL(None, use_errno=True)
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    # Without the mounts below: a container must not see this host's control groups.
    if libc.mount(source.encode(), target.encode(), None, 4096, None) != 0:
        raise OSError(ctypes.get_errno(), f"bind {source}", target)
    if read_only and libc.mount(None, target.encode(), None, 4096 | 32 | 1, None) != 0:
        raise OSError(ctypes.get_errno(), f"bind {source} read-only", target)


class Tree(TypedDict):
    """One mount of a root."""

    target: str
    lower: str
    upper: str
    work: str


class Orders(TypedDict):
    """The starter's orders."""

    root: str
    trees: list[Tree]
    volumes: dict[str, str]
    own_network: bool
    confined: bool
    python: str
    confine: str
    hostname: str
    argv: list[str]
    env: dict[str, str]
    cwd: str


def _make_root(orders: Orders) -> None:
    root = orders["root"]
    for tree in orders["trees"]:
        options = f"lowerdir={tree['lower']},upperdir={tree['upper']},workdir={tree['work']}"
        _mount("overlay", root + tree["target"], "overlay", options)
    _mount("proc", f"{root}/proc", "proc")
    _bind("/sys", f"{root}/sys", read_only=True)
    _mount("tmpfs", f"{root}/dev", "tmpfs", "mode=755")
    for name in _DEVICES:
        _bind(f"/dev/{name}", f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/pts")
    _mount("devpts", f"{root}/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", f"{root}/dev/ptmx")
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    _mount("tmpfs", f"{root}/dev/shm", "tmpfs", "mode=1777")
    _mount("tmpfs", f"{root}/run", "tmpfs", "mode=755")
    for target, volume in orders["volumes"].items():
        _bind(volume, root + target)
    _bind(orders["confine"], f"{root}/.container/confine.py", read_only=True)
    os.chroot(root)
    os.chdir("/")


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        import fcntl

        fcntl.ioctl(sock, 0x8914, struct.pack("16sH14s", b"lo", 1 | 64, b""))


def main() -> None:
    """Be the container's first process."""
    orders: Orders = json.load(sys.stdin)
    if orders["own_network"]:
        _loopback_up()
    if orders["hostname"]:
        socket.sethostname(orders["hostname"])
    _make_root(orders)
    command = subprocess.Popen(
        [orders["python"], "-I", "-S", "/.container/confine.py", *orders["argv"]]
        if orders["confined"]
        else orders["argv"],
        env=orders["env"],
        cwd=orders["cwd"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.write(4, b"ready")
    os.close(4)
    _serve(command.pid)


def _ignore(number: int, frame: object) -> None:
    # Without any handler, no byte is written to the wake-up pipe.
    del number, frame


def _leave(number: int, frame: object) -> None:
    del frame
    os._exit(128 + number)


def _serve(command: int) -> None:
    """Reap until the command ends or the starter does."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(3, select.POLLIN)
    while True:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == command:
                code = os.waitstatus_to_exitcode(status)
                # Leaving ends every process of the container.
                os._exit(code if code >= 0 else 128 - code)
        for fd, _ in poll.poll():
            if fd == 3:
                os._exit(137)
            os.read(reading, 65536)


if __name__ == "__main__":
    main()
