"""The interfaces of a provider, its hosts and its machines.

Models, packages, serving and sessions are in higher layers, and use only these interfaces. Every
provider passes `seer.testing.provider_contract`.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seer.errors import PauseUnsupportedError, SandboxLostError, SandboxStateError
from seer.providers._spec import (
    ExecResult,
    FileStatus,
    Layout,
    MachineSpec,
    MachineStatus,
    OnOutput,
    TerminalSize,
)
from seer.providers.client._interfaces import Channel, HostSocket, Listener, Process

logger = logging.getLogger(__name__)

CAPTURE_LIMIT = 256 * 1024 * 1024
"""The bytes of each stream that `Machine.exec` keeps by default."""
_START_PATIENCE = 30.0


class Machine(ABC):
    """A started machine. The controller holds its lease until it calls `terminate` or `detach`."""

    id: str
    provider: str
    layout: Layout
    note: str = ""
    """The spec's note."""
    users: bool = False
    """Whether commands can run as a user other than the agent's."""
    runs_nothing: bool = False
    """Whether it runs no programs, because it replays a recorded machine."""

    @property
    def detached(self) -> bool:
        """Whether it outlives this controller."""
        return False

    @property
    def was_detached(self) -> bool:
        """Whether it was detached when this controller found it. True if that is unknown."""
        return True

    @property
    def paused(self) -> bool:
        """Whether it is paused, as far as this controller knows."""
        return False

    def path(self, target: str) -> str:
        """The path at which programs in the machine see the mount at `target`."""
        return target

    @abstractmethod
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
        """Start a command without a shell, in its own session.

        Args:
            argv: The program and its arguments.
            env: Added to the machine's environment.
            cwd: Working folder; the layout's `workdir` by default.
            stdin: Whether to keep standard input open for `Process.write`.
            pty: Run the command in a terminal of this size. It then has standard input, and all its
                output arrives as `stdout`.
            user: The name or number of the machine's user to run it as; the agent's by default.

        Raises:
            SandboxLostError: The machine is gone.
            UserUnsupportedError: The machine has only one user.
            RemoteFileError: The program or the folder does not exist, or cannot be used.
        """

    @abstractmethod
    async def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file; relative paths start at the layout's `workdir`.

        Raises:
            RemoteFileError: With the machine's errno.
        """

    @abstractmethod
    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False
    ) -> None:
        """Write a file atomically (or append to it), and create its parent folders.

        Raises:
            RemoteFileError: With the machine's errno. The file then keeps its old content.
        """

    @abstractmethod
    async def stat(self, path: str, *, follow: bool = True) -> FileStatus:
        """Describe a file; with `follow=False`, a link itself instead of its target.

        Raises:
            RemoteFileError: With the machine's errno.
        """

    @abstractmethod
    async def list_dir(self, path: str) -> list[FileStatus]:
        """Describe everything in a folder, in no particular order. Links are not followed.

        Raises:
            RemoteFileError: With the machine's errno.
        """

    @abstractmethod
    async def make_dir(self, path: str, *, mode: int = 0o755) -> None:
        """Create a folder and its parents. An existing folder is not an error.

        Raises:
            RemoteFileError: With the machine's errno.
        """

    @abstractmethod
    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with `recursive`, a folder with its content.

        Raises:
            RemoteFileError: With the machine's errno.
        """

    @abstractmethod
    async def connect(self, address: str | int) -> Channel:
        """Open a connection to a Unix socket (path) or a loopback TCP port in the machine.

        Raises:
            RemoteFileError: Nothing listens there.
        """

    @abstractmethod
    def listen(self, path: str) -> Listener:
        """Accept connections that programs in the machine make to the Unix socket `path`.

        Raises:
            RemoteFileError: The socket cannot be created there.
            IsolationError: Programs in this machine's jail may not connect to sockets.

        Both are raised at once, or when the listener is entered or first awaited.
        """

    @abstractmethod
    async def detach(self) -> None:
        """Let the machine outlive this controller."""

    async def let_go(self) -> None:
        """Undo `Provider.find`: leave the machine to its other controllers.

        A machine that was detached is detached again. By default, this does nothing.
        """
        return None

    async def pause(self) -> None:
        """Stop every process in the machine and keep its memory. Pausing twice is harmless.

        Its lease and its timeout still apply. `idle_timeout` does not count while it is paused.

        Raises:
            PauseUnsupportedError: This provider cannot pause machines.
            SandboxLostError: The machine is gone.
        """
        raise PauseUnsupportedError(f"provider {self.provider!r} cannot pause a machine")

    async def resume(self) -> None:
        """Continue a paused machine. Harmless on a machine that runs.

        Raises:
            PauseUnsupportedError: This provider cannot pause machines.
            SandboxLostError: The machine is gone.
        """
        raise PauseUnsupportedError(f"provider {self.provider!r} cannot pause a machine")

    @abstractmethod
    async def terminate(self) -> None:
        """End the machine and everything in it. Terminating twice is harmless."""

    def socket_path(self, path: str) -> Path | None:
        """The path of a machine's Unix socket on this host; None if it is on another host."""
        return None

    def about(self) -> dict[str, Any]:
        """Its limits and isolation, as plain data for the records of runs, without secrets."""
        return {"id": self.id, "provider": self.provider}

    async def reach(self, path: str) -> HostSocket:
        """Make a Unix socket of the machine available as a file on this host.

        On the same host, this is the socket itself. Otherwise it is a socket that forwards every
        connection until it is closed.

        Raises:
            OSError: The socket cannot be made on this host.
        """
        found = self.socket_path(path)
        if found is not None:
            return HostSocket(found)
        from seer.providers.client._relay import Relay

        return await Relay.open(self, path)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        capture_limit: int = CAPTURE_LIMIT,
        user: str | None = None,
    ) -> ExecResult:
        """Run a command to its end; see `spawn` for the arguments and errors.

        After `timeout`, the whole process tree is killed and `timed_out` is set. The result holds
        the first `capture_limit` bytes of each stream; `on_output` gets everything.
        """
        return await run_to_end(
            lambda: self.spawn(argv, env=env, cwd=cwd, stdin=stdin is not None, user=user),
            argv,
            stdin=stdin,
            timeout=timeout,
            on_output=on_output,
            capture_limit=capture_limit,
        )


async def run_to_end(
    spawn: Callable[[], Awaitable[Process]],
    argv: Sequence[str],
    *,
    stdin: bytes | None,
    timeout: float | None,
    on_output: OnOutput | None,
    capture_limit: int,
) -> ExecResult:
    """Start a command and wait for its end; see `Machine.exec`.

    Args:
        spawn: Starts the command.
        argv: Its arguments, for errors.
        stdin: Its standard input.
        timeout: Seconds after which it is killed.
        on_output: Called with its output.
        capture_limit: The bytes of each stream to keep.

    Raises:
        SandboxLostError: The machine is gone, or does not start the command.
    """
    try:
        # A machine that does not start a command within this time counts as lost.
        async with asyncio.timeout(None if timeout is None else timeout + _START_PATIENCE):
            process = await spawn()
    except TimeoutError:
        raise SandboxLostError(
            f"the sandbox did not start {argv[0]!r} within {timeout} + {_START_PATIENCE:g} s; "
            f"terminate it"
        ) from None
    captured = {"stdout": _BoundedOutput(capture_limit), "stderr": _BoundedOutput(capture_limit)}

    async def collect() -> int:
        async for stream, data in process.output():
            captured[stream].add(data)
            if on_output is not None:
                on_output(stream, data)
        return await process.wait()

    collecting = asyncio.create_task(collect())
    feeding = asyncio.create_task(_feed(process, stdin)) if stdin is not None else None
    try:
        finished, _ = await asyncio.wait({collecting}, timeout=timeout)
        if not finished:
            await process.kill()
        exit_code = await collecting
    finally:
        tasks: list[asyncio.Task[Any]] = [collecting]
        if feeding is not None:
            tasks.append(feeding)
        for task in tasks:
            task.cancel()
        await process.close()
        await asyncio.gather(*tasks, return_exceptions=True)
    return ExecResult(
        exit_code=exit_code,
        stdout=captured["stdout"].value(),
        stderr=captured["stderr"].value(),
        timed_out=not finished,
        truncated=any(capture.truncated for capture in captured.values()),
    )


class _BoundedOutput:
    """The first bytes of a stream, and whether there were more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.truncated = False

    def add(self, data: bytes) -> None:
        kept = data[: self._limit - self._size]
        if kept:
            self._parts.append(kept)
            self._size += len(kept)
        self.truncated = self.truncated or len(kept) < len(data)

    def value(self) -> bytes:
        mark = b"\n[output cut here: more than %d bytes]\n" % self._limit
        return b"".join(self._parts) + (mark if self.truncated else b"")


async def _feed(process: Process, data: bytes) -> None:
    try:
        await process.write(data)
        await process.close_stdin()
    except SandboxStateError:
        # A command may end before it has read all of its input.
        logger.debug("a command ended before it had read its input")


class Host(ABC):
    """Another computer on which a machine will run. It must have the files in the spec."""

    name: str

    @abstractmethod
    async def run(
        self,
        module: str,
        request: Mapping[str, object],
        *,
        on_message: Callable[[Mapping[str, Any]], None],
    ) -> Mapping[str, Any]:
        """Run the `main` of a module of this package on the host, with the host's own Python.

        Args:
            module: The module's name. It may import only modules that are sent to a host.
            request: The module's input, sent as JSON.
            on_message: Called with every progress report.

        Returns:
            Its result.

        Raises:
            SeerError: The error that the module reports, of the same class.
            HostUnreachableError: The connection broke.
        """

    @abstractmethod
    async def push(self, folder: Path) -> Path:
        """Copy a folder to the host, unless its content is already there. Returns its path.

        Raises:
            HostUnreachableError: The connection broke.
            HostFullError: The host's disk is full.
        """

    @abstractmethod
    async def release(self) -> None:
        """Release the host, so that it costs nothing, unless a machine runs on it."""


class Provider(ABC):
    """Starts machines in one place, such as this host or a vendor's cloud."""

    name: str
    shares_host: bool = False
    """Whether machines run on this host, so that its paths can be mounted into them."""
    rents: bool = False
    """Whether a machine costs money from its start. It then has only the models and credentials
    that Seer gives it."""

    @property
    def runs_nothing(self) -> bool:
        """Whether its machines run no programs, so that they need no preparation."""
        return False

    def unavailable(self) -> str | None:
        """Why it cannot be used here, such as missing credentials; None if it can.

        This does not use the network.
        """
        return None

    async def kept_secrets(self, names: Sequence[str], options: object) -> tuple[str, ...]:
        """The names of the secrets that the provider stores for this account.

        Args:
            names: The names of secrets that are not set on this host.
            options: The configuration's `provider_options`.

        Raises:
            ProviderError: The provider did not answer.
        """
        return ()

    async def check(self, spec: MachineSpec) -> None:
        """Refuse an unavailable machine before anything is prepared for it.

        Raises:
            ProviderError: The provider does not have the machine; the message says what to do.
        """
        return None

    async def host(self, spec: MachineSpec) -> Host | None:
        """The host on which a machine of this spec will run; None for this host.

        Packages, models and repositories can then be prepared there. Set the spec's `host` to it,
        or release it.

        Raises:
            ProviderError: No host is available.
        """
        return None

    @abstractmethod
    async def start(self, spec: MachineSpec) -> Machine:
        """Start a machine and hold its lease.

        Raises:
            ProviderError: The machine could not be started; nothing is left running.
            IsolationError: The jail could not be set up.
        """

    @abstractmethod
    async def find(self, machine_id: str) -> Machine:
        """Adopt a running machine, even one of another process.

        Raises:
            SandboxNotFoundError: It is not running; the message says how it ended, if known.
        """

    @abstractmethod
    async def list(self) -> list[MachineStatus]:
        """All running machines of this user, including those of other processes."""
