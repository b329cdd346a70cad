"""The interfaces of a provider, its hosts and its machines.

Models, packages, serving and sessions are written once, in the layers above, in terms of these.
Every provider passes `seer.testing.provider_contract`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seer.errors import PauseUnsupportedError
from seer.providers._spec import (
    ExecResult,
    FileStatus,
    Layout,
    MachineSpec,
    MachineStatus,
    OnOutput,
    TerminalSize,
)
from seer.providers.client._exec import CAPTURE_LIMIT, run_to_end
from seer.providers.client._interfaces import Channel, HostSocket, Listener, Process


class Machine(ABC):
    """A started machine. The controller holds its lease until `terminate` or `detach`."""

    id: str
    provider: str
    layout: Layout
    note: str = ""
    """The spec's note."""
    users: bool = False
    """Whether commands can be run as another user than the agent's."""
    runs_nothing: bool = False
    """Whether no program can be run in it, because it stands in for a recorded machine."""

    @property
    def detached(self) -> bool:
        """Whether it has a lifetime of its own, apart from this controller."""
        return False

    @property
    def paused(self) -> bool:
        """Whether it was paused, as far as this controller has heard."""
        return False

    def path(self, target: str) -> str:
        """Where programs in the machine see what the spec mounted at `target`."""
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
        """Start a command without a shell, in a session of its own.

        Args:
            argv: The program and its arguments.
            env: Added to the machine's environment.
            cwd: Working folder; the layout's `workdir` by default.
            stdin: Whether to keep standard input open for `Process.write`.
            pty: Run it in a terminal of this size; it then has standard input, and all it prints
                arrives as `stdout`.
            user: The name or number of the machine's user to run it as; the agent's by default.

        Raises:
            SandboxLostError: The machine is gone.
            UserUnsupportedError: The machine has one user only.
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
        """Write a file atomically (or append to it); parent folders are made.

        Raises:
            RemoteFileError: With the machine's errno. The old content is then still there.
        """

    @abstractmethod
    async def stat(self, path: str, *, follow: bool = True) -> FileStatus:
        """Describe a file; with `follow=False` a link itself and not where it leads.

        Raises:
            RemoteFileError: With the machine's errno.
        """

    @abstractmethod
    async def list_dir(self, path: str) -> list[FileStatus]:
        """Describe everything in a folder, in no order; links are not followed.

        Raises:
            RemoteFileError: With the machine's errno.
        """

    @abstractmethod
    async def make_dir(self, path: str, *, mode: int = 0o755) -> None:
        """Make a folder and its parents; one that is there already is fine.

        Raises:
            RemoteFileError: With the machine's errno.
        """

    @abstractmethod
    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with `recursive` a folder and all in it.

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

        Raises (when the listener is entered or first awaited, or at once):
            RemoteFileError: The socket cannot be made there.
            IsolationError: Programs in this machine's jail may not connect to sockets.
        """

    @abstractmethod
    async def detach(self) -> None:
        """Give the machine a lifetime of its own: it outlives this controller."""

    async def pause(self) -> None:
        """Stop all that runs in the machine and keep its memory. Pausing twice is harmless.

        Its lease and its timeout hold as before; `idle_timeout` does not count while it is paused.

        Raises:
            PauseUnsupportedError: This provider cannot.
            SandboxLostError: The machine is gone.
        """
        raise PauseUnsupportedError(f"provider {self.provider!r} cannot pause a machine")

    async def resume(self) -> None:
        """Let a paused machine go on; harmless on one that runs.

        Raises:
            PauseUnsupportedError: This provider cannot.
            SandboxLostError: The machine is gone.
        """
        raise PauseUnsupportedError(f"provider {self.provider!r} cannot pause a machine")

    @abstractmethod
    async def terminate(self) -> None:
        """End the machine and everything in it. Terminating twice is harmless."""

    def socket_path(self, path: str) -> Path | None:
        """The host path of a Unix socket of the machine, where they share a host; else None."""
        return None

    def about(self) -> dict[str, Any]:
        """What bounds it, as plain data for the records of runs. No secrets."""
        return {"id": self.id, "provider": self.provider}

    async def reach(self, path: str) -> HostSocket:
        """Make a Unix socket of the machine available as a file of this host.

        Where they share a host that is the socket itself; else one that passes every connection
        on until it is closed.

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

        Past `timeout` the whole process tree is killed and the result says so. Of each stream the
        first `capture_limit` bytes are kept, then a mark; `on_output` gets everything.
        """
        return await run_to_end(
            lambda: self.spawn(argv, env=env, cwd=cwd, stdin=stdin is not None, user=user),
            argv,
            stdin=stdin,
            timeout=timeout,
            on_output=on_output,
            capture_limit=capture_limit,
        )


class Host(ABC):
    """Another computer, on which a machine will run: what its spec names must lie there."""

    name: str

    @abstractmethod
    async def run(
        self,
        module: str,
        request: Mapping[str, object],
        *,
        on_message: Callable[[Mapping[str, Any]], None],
    ) -> Mapping[str, Any]:
        """Run the `main` of a module of this package there, with the host's own Python.

        Args:
            module: Its name; it imports nothing that a host does not get.
            request: What it reads, as JSON.
            on_message: Called with what it reports on its way.

        Returns:
            What it reports at last.

        Raises:
            SeerError: The error that it reports, of the same class.
            HostUnreachableError: The connection broke.
        """

    @abstractmethod
    async def push(self, folder: Path) -> Path:
        """Copy a folder there, unless the same content is there already; gives its path.

        Raises:
            HostUnreachableError: The connection broke.
            HostFullError: It has no room.
        """

    @abstractmethod
    async def release(self) -> None:
        """Release the host, so that it costs nothing more, unless a machine runs on it."""


class Provider(ABC):
    """A place where machines come from."""

    name: str
    shares_host: bool = False
    """Whether machines run on this host, so that its paths can be mounted into them."""
    rents: bool = False
    """Whether a machine costs money from its start. It then has no models and no credentials but
    those that it is given."""

    @property
    def runs_nothing(self) -> bool:
        """Whether packages, models and repositories would be of no use to its machines."""
        return False

    def unavailable(self) -> str | None:
        """Why it cannot be used here, such as an account that is not set up; None when it can.

        Looked up at once, without any network.
        """
        return None

    async def kept_secrets(self, names: Sequence[str], options: object) -> tuple[str, ...]:
        """Those of the names under which the provider itself keeps secrets for this account.

        Args:
            names: Names of secrets that are not set here.
            options: The configuration's `provider_options`.

        Raises:
            ProviderError: The provider could not be asked.
        """
        return ()

    async def check(self, spec: MachineSpec) -> None:
        """Refuse a machine that is not available, before anything is prepared for it.

        Raises:
            ProviderError: What the spec asks for is not there; the message says what to do.
        """
        return None

    async def host(self, spec: MachineSpec) -> Host | None:
        """Where a machine like this will run; None where that is this host.

        What the spec is to name (packages, models, repositories) can then be prepared there.
        Hand it on in the spec's `host`, or release it.

        Raises:
            ProviderError: No host is available.
        """
        return None

    @abstractmethod
    async def start(self, spec: MachineSpec) -> Machine:
        """Start a machine and hold its lease.

        Raises:
            ProviderError: It could not be started; nothing is left running.
            IsolationError: The boundary could not be set up.
        """

    @abstractmethod
    async def find(self, machine_id: str) -> Machine:
        """Adopt a running machine, also one of another process.

        Raises:
            SandboxNotFoundError: It is not running; the message says how it ended, if known.
        """

    @abstractmethod
    async def list(self) -> list[MachineStatus]:
        """All machines of this user that are running, of this process and of others."""
