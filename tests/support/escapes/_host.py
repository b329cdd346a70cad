"""Plant the attempts' targets on the host, and check afterwards whether they were touched."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

from ._attempt import Facts, libc

_SLEEPER = "import signal, sys; sys.stdout.write('r'); sys.stdout.flush(); signal.pause()"


class Targets:
    """The planted targets. `facts` goes into the jail; `damage` checks them afterwards."""

    def __init__(self, facts: Facts, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.facts = facts
        self._folder = folder
        self._process = process
        self._listeners: list[socket.socket] = []
        self._priority = os.getpriority(os.PRIO_PROCESS, process.pid)
        self._before = self._look()

    def listen(self, *listeners: socket.socket) -> None:
        """Watch these sockets: nothing may arrive on them."""
        self._listeners += listeners

    def damage(self) -> list[str]:
        """Everything on the host that an attempt has touched; empty when the jail held."""
        found: list[str] = []
        if self._process.poll() is not None:
            found.append(f"the host process ended ({self._process.returncode})")
        elif os.getpriority(os.PRIO_PROCESS, self._process.pid) > self._priority:
            found.append("the host process was slowed down")
        for listener in self._listeners:
            listener.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                else:
                    listener.recv(100)
                found.append(f"somebody reached {listener.getsockname()!r}")
        for path, state in self._look().items():
            if self._before.get(path) != state:
                found.append(f"{path} was changed")
        return found

    def _look(self) -> dict[str, object]:
        state: dict[str, object] = {}
        for path in (self._folder, *sorted(self._folder.rglob("*"))):
            found = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
            state[str(path)] = (found.st_mode, found.st_uid, found.st_mtime_ns, content)
        return state


@contextlib.contextmanager
def plant(
    *,
    uid: int,
    package: Path,
    workspace: str,
    workspace_source: Path,
    read_only: str,
    read_only_source: Path,
    limits: dict[str, int],
) -> Generator[Targets]:
    """Plant the targets, open to the user `uid`, and remove them at the end.

    Args:
        uid: The user that the jail's programs run as, as the host sees it.
        package: Seer's package.
        workspace: The jail's writable folder, as the jail sees it.
        workspace_source: The same, on the host.
        read_only: A read-only mount of the jail, as the jail sees it.
        read_only_source: The same, on the host.
        limits: `file_size`, `open_files`, `processes`, `memory` and `shm` of the jail.
    """
    canary = f"canary-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="seer-host-"))
        stack.callback(shutil.rmtree, folder)
        folder.chmod(0o755)
        _files(folder, canary, uid)
        shared = Path("/dev/shm", canary)
        shared.write_text(canary)
        stack.callback(shared.unlink)
        shared.chmod(0o666)
        locked = read_only_source / "locked.txt"
        locked.write_text("as it was")
        _give(locked, uid, 0o644)
        address = _own_address()
        listeners = _listeners(folder, canary)
        if address:
            port: int = listeners[0].getsockname()[1]
            listeners.append(socket.create_server((address, port)))
        for listener in listeners:
            stack.enter_context(listener)
        key = _segment(stack)
        queue = _queue(stack, canary)
        controller, terminal = os.openpty()
        stack.callback(os.close, controller)
        stack.callback(os.close, terminal)
        with contextlib.suppress(PermissionError):
            os.fchown(terminal, uid, -1)
        process = _process(stack, canary, uid)
        facts: Facts = {
            "canary": canary,
            "secret_file": str(folder / "secret.txt"),
            "secret_folder": str(folder / "inner"),
            "secret_link": str(folder / "link"),
            "open_file": str(folder / "open.txt"),
            "open_folder": str(folder / "inner"),
            "package": str(package),
            "host_user": "daemon",
            "hostname": socket.gethostname(),
            "pid": process.pid,
            "tcp4": listeners[0].getsockname()[1],
            "tcp6": _port(listeners, socket.AF_INET6, socket.SOCK_STREAM),
            "udp": _port(listeners, socket.AF_INET, socket.SOCK_DGRAM),
            "address": address,
            "unix_stream": str(folder / "stream.sock"),
            "unix_datagram": str(folder / "datagram.sock"),
            "abstract": canary,
            "shm_file": str(shared),
            "shm_key": key,
            "queue": queue,
            "terminal": os.ttyname(terminal),
            "workspace": workspace,
            "workspace_source": str(workspace_source),
            "read_only_file": f"{read_only}/locked.txt",
            "file_size": limits["file_size"],
            "open_files": limits["open_files"],
            "processes": limits["processes"],
            "memory": limits["memory"],
            "shm": limits["shm"],
            "in_flight": resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2,
            "pending_signals": resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] // 2,
            "source_mark": "",
            "foreign_call": "",
            "foreign_handle": "",
        }
        targets = Targets(facts, folder, process)
        targets.listen(*listeners)
        yield targets


def _give(path: Path, uid: int, mode: int) -> None:
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, uid, uid)


def _files(folder: Path, canary: str, uid: int) -> None:
    for name in ("secret.txt", "open.txt"):
        (folder / name).write_text(canary)
        _give(folder / name, uid, 0o666)
    with contextlib.suppress(OSError):  # a file system without attributes
        os.setxattr(folder / "secret.txt", "user.canary", canary.encode())
    (folder / "link").symlink_to(canary)
    (folder / "inner").mkdir()
    _give(folder / "inner", uid, 0o777)


def _listeners(folder: Path, canary: str) -> list[socket.socket]:
    """TCP over IPv4, over IPv6 where there is any, UDP, Unix stream and datagram, abstract."""
    made: list[socket.socket] = []
    made.append(socket.create_server(("127.0.0.1", 0)))
    with contextlib.suppress(OSError):
        made.append(socket.create_server(("::1", 0), family=socket.AF_INET6))
    for family, kind, address in (
        (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "stream.sock")),
        (socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagram.sock")),
        (socket.AF_UNIX, socket.SOCK_STREAM, "\0" + canary),
    ):
        made.append(socket.socket(family, kind))
        made[-1].bind(address)
        if kind == socket.SOCK_STREAM:
            made[-1].listen()
    for name in ("stream.sock", "datagram.sock"):
        (folder / name).chmod(0o777)
    return made


def _port(listeners: list[socket.socket], family: int, kind: int) -> int:
    """The port of the first such socket, or an unused port if there is none."""
    for listener in listeners:
        if (listener.family, listener.type) == (family, kind):
            return listener.getsockname()[1]
    return 9


def _segment(stack: contextlib.ExitStack) -> int:
    key = secrets.randbelow(1 << 30) + 1
    found = libc().shmget(key, 4096, 0o1666)
    if found >= 0:
        stack.callback(libc().shmctl, found, 0, None)
    return key


def _queue(stack: contextlib.ExitStack, canary: str) -> str:
    library = ctypes.CDLL("librt.so.1", use_errno=True)
    name = f"/{canary}".encode()
    before = os.umask(0)
    opened = library.mq_open(name, os.O_CREAT | os.O_RDWR, 0o666, None)
    os.umask(before)
    if opened >= 0:
        stack.callback(library.mq_unlink, name)
    return canary


def _process(stack: contextlib.ExitStack, canary: str, uid: int) -> subprocess.Popen[bytes]:
    """A process of the jail's user, with the canary in its environment and command line."""
    root = os.geteuid() == 0
    process = subprocess.Popen(
        ["/usr/bin/python3" if root else sys.executable, "-I", "-S", "-c", _SLEEPER, canary],
        env={"CANARY": canary},
        stdout=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
        user=uid if root else None,
        group=uid if root else None,
        extra_groups=[] if root else None,
    )

    def end() -> None:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    stack.callback(end)
    assert process.stdout is not None
    process.stdout.read(1)
    return process


def _own_address() -> str:
    """An address of this machine that is not loopback. Sends nothing."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]
    return ""
