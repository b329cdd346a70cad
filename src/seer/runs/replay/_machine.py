"""A machine that runs nothing: it holds files, and serves recorded interfaces.

It implements the machine protocol, so `ScopedSandbox` and sessions use it unchanged. When the
controller starts the gate's server in it, a `ReplayGate` answers instead.
"""

import asyncio
import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from seer._files import replace_file
from seer._transient import TransientFolder
from seer._unix_sockets import address
from seer.errors import ProviderError, RemoteFileError, SandboxLostError, SandboxStateError
from seer.providers import (
    Channel,
    FileStatus,
    Listener,
    Machine,
    MachineSpec,
    Process,
    Stream,
    TerminalSize,
)
from seer.providers._spec import FileKind, Layout
from seer.providers.client._channel import StreamChannel
from seer.runs.replay._gate import ReplayGate

GateMaker = Callable[[str, Callable[[str], Path]], ReplayGate]
"""Makes the gate of an interface, given its name and a function that maps machine paths to host
paths."""

_LAYOUT = Layout(
    workdir="/work",
    home="/home/agent",
    tmp="/tmp",
    run="/run/seer",
    models="/models",
    python="python",
)


class ReplayMachine(Machine):
    """Files in a private folder, and recorded gates."""

    provider = "replay"
    layout = _LAYOUT
    runs_nothing = True

    def __init__(self, spec: MachineSpec, make_gate: GateMaker) -> None:
        self.id = f"replay-{secrets.token_hex(8)}"
        self.note = spec.note
        self._make_gate = make_gate
        self._folder = TransientFolder("replay")
        self._root = self._folder.path
        for folder in (_LAYOUT.workdir, _LAYOUT.run, _LAYOUT.tmp, _LAYOUT.home):
            self._host(folder).mkdir(parents=True, exist_ok=True)
        self._gates: dict[str, ReplayGate] = {}
        """The gates that were started, by their folder in the machine."""
        self._ended = False

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        pty: TerminalSize | None = None,
        user: str | None = None,
    ) -> Process:
        """Start a recorded gate.

        Raises:
            SandboxStateError: The command does not start a gate; a replay runs nothing else.
        """
        self._check()
        if list(argv[1:3]) != ["-m", "seer.rpc.server"] or len(argv) != 4:
            raise SandboxStateError(
                f"a replay cannot run {list(argv)!r}: it has only recorded tool calls and "
                "interface calls"
            )
        config = json.loads(self._host(argv[3]).read_bytes())
        gate = self._make_gate(str(config["name"]), self._host)
        gate.serve_control(str(config["control"]))
        self._gates[argv[3].rpartition("/")[0]] = gate
        return _GateProcess(gate)

    async def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `Machine.read_file`; recorded arrays are where a gate would keep them."""
        folder, _, value = path.partition("/record/")
        if value and folder in self._gates:
            return self._gates[folder].blob(value.rpartition("/")[2])
        with _as_remote(path), self._host(path).open("rb") as file:
            file.seek(offset)
            return file.read(-1 if length is None else length)

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False
    ) -> None:
        """See `Machine.write_file`."""
        self._check()
        target = self._host(path)
        with _as_remote(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            if append:
                with target.open("ab") as file:
                    file.write(data)
            else:
                replace_file(target, data, mode=mode)

    async def stat(self, path: str, *, follow: bool = True) -> FileStatus:
        """See `Machine.stat`."""
        with _as_remote(path):
            return _status(self._host(path), follow=follow)

    async def list_dir(self, path: str) -> list[FileStatus]:
        """See `Machine.list_dir`."""
        with _as_remote(path):
            return [_status(item, follow=False) for item in self._host(path).iterdir()]

    async def make_dir(self, path: str, *, mode: int = 0o755) -> None:
        """See `Machine.make_dir`."""
        self._check()
        with _as_remote(path):
            self._host(path).mkdir(mode=mode, parents=True, exist_ok=True)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """See `Machine.remove`."""
        target = self._host(path)
        with _as_remote(path):
            if not target.is_dir() or target.is_symlink():
                target.unlink()
            elif recursive:
                shutil.rmtree(target)
            else:
                target.rmdir()

    async def connect(self, address: str | int) -> Channel:
        """See `Machine.connect`; only Unix sockets listen in a replay."""
        self._check()
        if isinstance(address, int):
            raise RemoteFileError(errno.ECONNREFUSED, "nothing listens in a replay", str(address))
        with _as_remote(address):
            return await connect_to_gate(self._host(address))

    def listen(self, path: str) -> Listener:
        """Refuse, because no program runs that could connect.

        Raises:
            SandboxStateError: Always.
        """
        raise SandboxStateError(f"a replay runs nothing that could connect to {path!r}")

    async def detach(self) -> None:
        """Refuse, because a replay ends with its controller.

        Raises:
            ProviderError: Always.
        """
        raise ProviderError("a replay cannot be detached, because it ends with its process")

    async def terminate(self) -> None:
        """End it; see `Machine.terminate`."""
        self._ended = True
        for gate in self._gates.values():
            gate.close()
        await asyncio.to_thread(self._folder.remove)

    def socket_path(self, path: str) -> Path | None:
        """The path on this host of a socket in the machine."""
        return self._host(path)

    def _check(self) -> None:
        if self._ended:
            raise SandboxLostError("the replayed sandbox was terminated")

    def _host(self, path: str) -> Path:
        given = PurePosixPath(_LAYOUT.workdir) / path
        parts = given.parts[1:]
        if ".." in parts:
            raise RemoteFileError(errno.EACCES, "leads out of the machine", path)
        return self._root.joinpath(*parts)


class _GateProcess(Process):
    """Represents the gate's server process; a replayed gate answers instead."""

    def __init__(self, gate: ReplayGate) -> None:
        self._gate = gate
        self._ended = asyncio.Event()

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        # A supervisor's first message: its control socket exists.
        yield "stdout", b'{"seer-gate": 1}\n'
        await self._ended.wait()

    async def write(self, data: bytes) -> None:
        raise SandboxStateError("a replayed interface has no standard input")

    async def close_stdin(self) -> None:
        return

    async def signal(self, number: int) -> None:
        await self.kill()

    async def wait(self) -> int:
        await self._ended.wait()
        return 0

    async def kill(self) -> None:
        self._gate.close()
        self._ended.set()

    async def resize(self, size: TerminalSize) -> None:
        return

    async def release(self) -> None:
        """Do nothing: a replayed gate ends with this process."""

    async def close(self) -> None:
        await self.kill()


async def connect_to_gate(path: Path) -> StreamChannel:
    """Connect to a replayed gate's socket.

    Raises:
        OSError: Nothing listens there.
    """
    with address(path) as short:
        return StreamChannel(*await asyncio.open_unix_connection(short), _gate_is_gone)


async def _gate_is_gone() -> SandboxLostError:
    return SandboxLostError("the replayed interface is gone")


@contextmanager
def _as_remote(path: str) -> Generator[None, None, None]:
    """Turn errors of the host's files into errors of the machine's files."""
    try:
        yield
    except RemoteFileError:
        raise
    except OSError as error:
        number = error.errno or errno.EIO
        raise RemoteFileError(number, os.strerror(number), path) from error


def _status(path: Path, *, follow: bool) -> FileStatus:
    found = path.stat() if follow else path.lstat()
    kinds: dict[int, FileKind] = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "folder",
        stat.S_IFLNK: "link",
        stat.S_IFSOCK: "socket",
    }
    return FileStatus(
        name=path.name,
        kind=kinds.get(stat.S_IFMT(found.st_mode), "other"),
        size=found.st_size,
        mode=stat.S_IMODE(found.st_mode),
        mtime=found.st_mtime,
    )
