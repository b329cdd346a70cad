"""A real OpenSSH server on loopback, with keys and settings of its own, and a wire to cut.

    with SshServer() as server:
        options = server.options()          # for provider="ssh"
        server.cut()                        # every connection breaks, as with a pulled cable

The login is this process's user or, if that is root and `ordinary` is set, an ordinary user that
exists only for this server. Connections go through a small forwarder, so that they can be broken,
or held up, without the server's knowledge.
"""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from seer.errors import ProviderError
from tests.support.folders import remove_at_end
from tests.support.ports import reserve_port

_SSHD = "/usr/sbin/sshd"
_ALIAS = "testhost"
# An id for this process alone: tests in other workers use up resources that the kernel counts per
# user.
_USER, _UID = "seer-tester", 50_000 + os.getpid() % 9_000
_PATIENCE = 60.0

_SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
MaxStartups 200
MaxSessions 50
{more}
"""

_CLIENT = """\
Host {alias}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/client_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  HostKeyAlias {alias}
"""


class SshServer:
    """An OpenSSH server for tests."""

    def __init__(
        self, *, ordinary: bool = False, python: str | None = None, more: str = ""
    ) -> None:
        """Describe it.

        Args:
            ordinary: Log in as an ordinary user; this process must be root.
            python: The interpreter that machines use; this one by default, or the system's for
                an ordinary user, who may not be able to read this one.
            more: Further lines of the server's configuration.

        Raises:
            ProviderError: There is no OpenSSH server here.
        """
        if not os.access(_SSHD, os.X_OK):
            raise ProviderError(
                f"{_SSHD} is not installed; install it with: apt install openssh-server"
            )
        self.user = _USER if ordinary else pwd.getpwuid(os.geteuid()).pw_name
        self._ordinary = ordinary
        self._python = python or ("/usr/bin/python3" if ordinary else sys.executable)
        self._more = more
        self._server: subprocess.Popen[bytes] | None = None
        self._forwarder: _Forwarder | None = None
        # Short, and open to the user who logs in: sockets' addresses have 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="seer-sshd-"))
        remove_at_end(self.folder)
        self.root = self.folder / "root"

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        try:
            self._prepare()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it and remove its files."""
        self.close()

    def _prepare(self) -> None:
        for name in ("host_key", "client_key"):
            _keygen(self.folder / name)
        self.folder.chmod(0o755)
        self.root.mkdir(mode=0o700)
        shutil.copy(self.folder / "client_key.pub", self.folder / "authorized_keys")
        public = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"{_ALIAS} {public}")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        if self._ordinary:
            os.chown(self.root, _UID, _UID)
            for name, line in (
                ("passwd", f"{_USER}:x:{_UID}:{_UID}::{self.root}:/bin/sh"),
                ("shadow", f"{_USER}:*:19000:0:99999:7:::"),
                ("group", f"{_USER}:x:{_UID}:"),
            ):
                text = Path("/etc", name).read_text()
                (self.folder / name).write_text(f"{text.rstrip()}\n{line}\n")

    def _start(self) -> None:
        with reserve_port() as held:
            self._start_on(held.getsockname()[1])

    def _start_on(self, port: int) -> None:
        config = self.folder / "sshd_config"
        config.write_text(_SERVER.format(port=port, folder=self.folder, more=self._more))
        log = (self.folder / "sshd.log").open("wb")
        with log:
            self._server = subprocess.Popen(
                [*self._surroundings(), _SSHD, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
            )
        deadline = time.monotonic() + _PATIENCE
        while not _answers(port):
            if self._server.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "sshd.log").read_text(errors="replace")
                raise ProviderError(f"the OpenSSH server did not start: {said}")
            self._server_pause()
        self._forwarder = _Forwarder(port)
        client = _CLIENT.format(
            alias=_ALIAS, port=self._forwarder.port, user=self.user, folder=self.folder
        )
        (self.folder / "ssh_config").write_text(client)

    def _surroundings(self) -> list[str]:
        """A view of the system in which the ordinary user exists, for the server alone."""
        if not self._ordinary:
            return []
        script = 'for name in passwd shadow group; do mount --bind "$0/$name" "/etc/$name"; done'
        return ["unshare", "--mount", "sh", "-ec", f'{script}; exec "$@"', str(self.folder)]

    @staticmethod
    def _server_pause() -> None:
        threading.Event().wait(0.02)

    def options(self) -> dict[str, object]:
        """What to give as `provider_options`."""
        return {
            "host": _ALIAS,
            "config": str(self.folder / "ssh_config"),
            "known_hosts": str(self.folder / "known_hosts"),
            "root": str(self.root),
            "python": self._python,
        }

    def environment(self) -> dict[str, str]:
        """The same as environment variables, for programs that are not to be changed."""
        return {f"SEER_SSH_{name.upper()}": str(value) for name, value in self.options().items()}

    @property
    def port(self) -> int:
        """Where clients connect."""
        assert self._forwarder is not None, "the server is not started"
        return self._forwarder.port

    @property
    def connections(self) -> int:
        """How many connections were made so far."""
        assert self._forwarder is not None, "the server is not started"
        return self._forwarder.made

    def cut(self) -> int:
        """Break every connection; gives how many there were. New ones can be made at once."""
        assert self._forwarder is not None, "the server is not started"
        return self._forwarder.cut()

    def block(self) -> None:
        """Let nothing through from now on: connections stay open and silent, new ones hang."""
        assert self._forwarder is not None, "the server is not started"
        self._forwarder.blocked.set()

    def unblock(self) -> None:
        """Let everything through again. Data that was held up is lost with its connection."""
        assert self._forwarder is not None, "the server is not started"
        self._forwarder.blocked.clear()
        self._forwarder.cut()

    def close(self) -> None:
        """End it and remove its files. Closing twice is harmless."""
        if self._forwarder is not None:
            self._forwarder.close()
            self._forwarder = None
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
            self._server = None
        shutil.rmtree(self.folder, ignore_errors=True)


def _keygen(path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
        probe.settimeout(5)
        return probe.recv(4) == b"SSH-"
    return False


class _Forwarder:
    """Passes TCP connections on, with a thread for each direction."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.blocked = threading.Event()
        self.made = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self.made += 1
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {near, far}
                for source, target in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._copy, args=(source, target), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(256 * 1024):
                if not self.blocked.is_set():
                    target.sendall(data)
        self._shut({source, target})
        # Each direction's thread closes the end that it reads from.
        source.close()

    def _shut(self, ends: set[socket.socket]) -> None:
        with self._lock:
            self._open -= ends
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> int:
        with self._lock:
            ends = set(self._open)
        self._shut(ends)
        return len(ends) // 2

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
