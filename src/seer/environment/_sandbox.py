"""`Sandbox`: a machine with models, packages and repositories, used through blocking calls.

Through this object, users start a sandbox, run commands, move files, detach, adopt and end it.
`_start` prepares the machine, and `seer.providers` defines what a machine can do. Every blocking
method has an async version with the prefix `a`.
"""

import asyncio
import contextlib
import os
import secrets
import shlex
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html import escape
from typing import ClassVar, Protocol, Self, cast

from seer._checks import check_type
from seer._ending import Ending, EndStep, run_all
from seer._sync import from_any_loop, on_loop, run_sync
from seer._wiring import open_notebook
from seer.environment._handles import ModelHandle, RepoHandle
from seer.environment._snapshots import Snapshot, find_snapshot, take_snapshot
from seer.environment._start import Started, adopt, start
from seer.environment.config._config import ExecutionMode, SandboxConfig
from seer.errors import CommandFailedError, CommandTimeoutError, SandboxStateError
from seer.isolation import Mount
from seer.providers import (
    DEFAULT,
    ExecResult,
    Machine,
    MachineStatus,
    Network,
    OnOutput,
    get_provider,
    resolve_provider,
)
from seer.workspace._gate import Dependent


class Output(str):
    """The standard output of a command, as text.

    Attributes:
        exit_code: The exit status; negative numbers are signals.
        stderr: What the command printed to standard error.
    """

    exit_code: int
    stderr: str

    def __new__(cls, stdout: str, *, exit_code: int, stderr: str) -> "Output":
        """Make an output from its parts."""
        self = super().__new__(cls, stdout)
        self.exit_code = exit_code
        self.stderr = stderr
        return self


class Sandbox:
    """A whole machine for an agent, with models, packages and, if the machine has one, a GPU.

    Example:
        with Sandbox(SandboxConfig(gpu=None, python_packages=["numpy"])) as sandbox:
            print(sandbox.exec("nproc"))
    """

    _kind: ClassVar[str] = "sandbox"
    _default_network: ClassVar[Network] = "full"

    def __init__(self, config: SandboxConfig | None = None) -> None:
        """Describe the sandbox; nothing starts before `start`.

        Raises:
            ConfigError: The configuration is not a `SandboxConfig`.
        """
        wanted = "a SandboxConfig, such as SandboxConfig(gpu=None)"
        check_type(f"{type(self).__name__}.config", config, SandboxConfig, wanted, none=True)
        self.config = config if config is not None else SandboxConfig()
        self._started: Started | None = None
        self._starting: asyncio.Task[None] | None = None
        self._ended = False
        self._end = Ending(self._run_ending_steps)
        self._snapshot: Snapshot | None = None
        self._notebook: Notebook | None = None
        self._dependents: weakref.WeakSet[Dependent] = weakref.WeakSet()
        self._process = os.getpid()

    def __repr__(self) -> str:
        """Its class, state and models; hidden models are not named."""
        models = [
            f"model_{number}" if model.hidden else model.name
            for number, model in enumerate(self.config.models)
        ]
        state = "ended" if self._ended else "not started"
        if self._started is not None and not self._ended:
            state = f"{self.sandbox_id}"
        return f"<{type(self).__name__} {', '.join([state, *models])}>"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"

    def start(self) -> Self:
        """Start the machine with its packages, models, repositories and files. Returns the sandbox.

        Raises:
            StartError: A phase failed; nothing is left running.
            SecretMissingError: A secret of the configuration is not set.
            SandboxStateError: The sandbox was started before, or was terminated during the start.
        """
        return run_sync(self._start())

    async def astart(self) -> Self:
        """The async version of `start`."""
        return await on_loop(self._start(), settle=True)

    async def _start(self) -> Self:
        self._check_process()
        if self._ended:
            raise SandboxStateError("this sandbox has ended; make a new one from its config")
        if self._started is not None:
            raise SandboxStateError(f"this sandbox is already running, as {self.sandbox_id!r}")
        if self._starting is not None:
            raise SandboxStateError("this sandbox is already being started")
        starting = self._starting = asyncio.create_task(self._run_start())
        try:
            await starting
        except asyncio.CancelledError:
            if not self._ended:
                if self._started is not None:
                    # The machine has just started, and its caller will never get it.
                    await self._end_machine()
                raise
        finally:
            self._starting = None
        if self._ended:
            raise SandboxStateError("this sandbox was terminated while it was being started")
        return self

    async def _run_start(self) -> None:
        self._started = await start(
            self.config,
            kind=self._kind,
            network=self._network(),
            snapshot=self._snapshot,
            mounts=self._extra_mounts(),
        )

    def _network(self) -> Network:
        wanted = self.config.network
        if wanted is None:
            return self._default_network
        # The configuration has checked this: a string is a mode, and a list has host names.
        return cast("Network", wanted if isinstance(wanted, str) else tuple(wanted))

    def _extra_mounts(self) -> tuple[Mount, ...]:
        """The mounts besides those of the configuration's models and repositories."""
        return ()

    def terminate(self) -> None:
        """End the machine and everything that runs in it.

        Closes the sessions in the sandbox, and other sessions whose libraries all came from it.
        Stops a start that is in progress. Terminating twice is harmless; after a failure, calling
        it again retries the steps that are left.

        Raises:
            EndingError: Several steps failed. A single failure is raised unchanged.
        """
        run_sync(self.aterminate())

    @from_any_loop
    async def aterminate(self) -> None:
        """The async version of `terminate`."""
        self._check_process()
        self._ended = True
        await self._end()

    async def _run_ending_steps(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        name = self._started.machine.id if self._started is not None else "that was not started"
        await run_all(f"sandbox {name}", self._ending_steps())

    def _ending_steps(self) -> Iterator[EndStep]:
        """The steps that end the sandbox, in order. Each step forgets the object that it ended."""
        if self.paused:
            # A paused machine does not answer, so it ends first and no other step waits for it.
            yield self._end_machine
        for dependent in list(self._dependents):
            yield partial(dependent.owner_ends, self)
        yield from self._content_steps()
        if self._started is not None:
            yield self._end_machine

    def _content_steps(self) -> Iterator[EndStep]:
        """The steps that precede the end of the machine."""
        return iter(())

    async def _end_machine(self) -> None:
        await self.machine.terminate()
        self._started = self._notebook = None

    def add_dependent(self, dependent: Dependent) -> None:
        """Register an object whose `owner_ends` is called before the sandbox ends. Held weakly."""
        self._dependents.add(dependent)

    def detach(self) -> str:
        """Let the sandbox outlive this process, and return its id for `from_id`.

        The sandbox then ends after `timeout`, after `idle_timeout`, or by a later `terminate`.
        """
        return run_sync(self.adetach())

    @from_any_loop
    async def adetach(self) -> str:
        """The async version of `detach`."""
        await self.machine.detach()
        return self.sandbox_id

    def pause(self) -> None:
        """Stop everything that runs in the sandbox. Its memory, kernels and loaded models stay.

        A paused sandbox uses no CPU. Until `resume`, commands raise `SandboxPausedError` and calls
        of served functions wait. The sandbox still belongs to this process. Its lease and `timeout`
        keep running; `idle_timeout` does not. GPU memory is moved to the host where the driver and
        the memory allow it; otherwise it stays allocated, and a warning says why.

        Raises:
            PauseUnsupportedError: The provider cannot pause a sandbox; the message says what to do
                instead.
            SandboxStateError: The sandbox is not running.
        """
        run_sync(self.apause())

    @from_any_loop
    async def apause(self) -> None:
        """The async version of `pause`."""
        await self.machine.pause()

    def resume(self) -> None:
        """Continue a paused sandbox. Harmless on a running sandbox."""
        run_sync(self.aresume())

    @from_any_loop
    async def aresume(self) -> None:
        """The async version of `resume`."""
        if self.machine.paused:
            await self.machine.resume()

    @property
    def paused(self) -> bool:
        """Whether the sandbox is paused."""
        return self._started is not None and self._started.machine.paused

    @classmethod
    def from_id(cls, sandbox_id: str, *, provider: str = DEFAULT) -> Self:
        """Adopt a running sandbox, even if another process started it.

        A paused sandbox is resumed.

        Args:
            sandbox_id: The sandbox's id.
            provider: Where it runs; the default resolves as in `SandboxConfig`.

        Raises:
            SandboxNotFoundError: It is not running; the message says how it ended, if known.
        """
        return run_sync(cls.afrom_id(sandbox_id, provider=provider))

    @classmethod
    @from_any_loop
    async def afrom_id(cls, sandbox_id: str, *, provider: str = DEFAULT) -> Self:
        """The async version of `from_id`."""
        started = await adopt(sandbox_id, provider=provider, kind=cls._kind)
        sandbox = cls(started.config)
        sandbox._started = started
        return sandbox

    @classmethod
    def list(cls, *, provider: str = DEFAULT) -> "list[MachineStatus]":
        """All running sandboxes of this user, including those of other processes."""
        return run_sync(get_provider(resolve_provider(provider)).list())

    @classmethod
    async def alist(cls, *, provider: str = DEFAULT) -> "list[MachineStatus]":
        """The async version of `list`."""
        return await on_loop(get_provider(resolve_provider(provider)).list())

    def __enter__(self) -> Self:
        """Start the sandbox, unless it runs already."""
        return self if self._started is not None else self.start()

    def __exit__(self, *_: object) -> None:
        """Terminate the sandbox, unless it was detached or belongs to a parent process."""
        if not self._is_detached and self._process == os.getpid():
            self.terminate()

    async def __aenter__(self) -> Self:
        """Start the sandbox, unless it runs already."""
        return self if self._started is not None else await self.astart()

    async def __aexit__(self, *_: object) -> None:
        """Terminate the sandbox, unless it was detached or belongs to a parent process."""
        if not self._is_detached and self._process == os.getpid():
            await self.aterminate()

    @property
    def _is_detached(self) -> bool:
        return self._started is not None and self._started.machine.detached

    def __del__(self) -> None:
        """Warn about a forgotten `terminate`. The machine ends with this process."""
        started = getattr(self, "_started", None)
        if started is not None and not started.machine.detached and self._process == os.getpid():
            warnings.warn(
                f"sandbox {started.machine.id!r} was not terminated; use `with` or terminate()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    @property
    def machine(self) -> Machine:
        """The sandbox's machine.

        Raises:
            SandboxStateError: The sandbox is not running.
        """
        return self._running.machine

    @property
    def sandbox_id(self) -> str:
        """The id under which `from_id` finds the sandbox."""
        return self.machine.id

    def _check_process(self) -> None:
        """Refuse to use a sandbox that the parent process made before the fork.

        Raises:
            SandboxStateError: This process is a fork of the one that made the sandbox.
        """
        if self._process != os.getpid():
            known = repr(self._started.machine.id) if self._started is not None else "its id"
            raise SandboxStateError(
                f"this sandbox belongs to process {self._process}, and this process is a fork of "
                f"it; use from_id({known}) here, or make another sandbox"
            )

    @property
    def _running(self) -> Started:
        self._check_process()
        if self._started is None:
            state = "has ended" if self._ended else "is not started; call start() first"
            raise SandboxStateError(f"this sandbox {state}")
        return self._started

    # --- commands --------------------------------------------------------------------------------

    def exec(
        self,
        cmd: str | Sequence[str],
        *,
        timeout: float | None = None,
        check: bool = True,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_output: OnOutput | None = None,
        user: str | None = None,
    ) -> Output:
        """Run a command in the sandbox.

        Args:
            cmd: A command line for bash, or a program and its arguments, run without a shell.
            timeout: Seconds after which the command and everything it started are killed.
            check: Whether to raise if the command fails.
            cwd: Where to run it; the sandbox's working folder by default.
            env: Added to the sandbox's environment.
            stdin: The command's standard input.
            on_output: Called with (`"stdout"` or `"stderr"`, bytes) while the command runs.
            user: The sandbox's user to run it as, by name or number; the agent's by default. It
                needs `provider_options={"users": True}`.

        Returns:
            The standard output, a `str` with `.exit_code` and `.stderr`.

        Raises:
            CommandFailedError: The exit status is not zero, and `check` is true.
            CommandTimeoutError: The timeout passed; holds the partial output.
            SandboxLostError: The sandbox ended while the command ran.
            UserUnsupportedError: The sandbox has only one user.
        """
        return run_sync(
            self.aexec(
                cmd,
                timeout=timeout,
                check=check,
                cwd=cwd,
                env=env,
                stdin=stdin,
                on_output=on_output,
                user=user,
            )
        )

    @from_any_loop
    async def aexec(
        self,
        cmd: str | Sequence[str],
        *,
        timeout: float | None = None,
        check: bool = True,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        on_output: OnOutput | None = None,
        user: str | None = None,
    ) -> Output:
        """The async version of `exec`."""
        result = await self.machine.exec(
            ["/bin/bash", "-c", cmd] if isinstance(cmd, str) else cmd,
            timeout=timeout,
            cwd=cwd,
            env=env,
            stdin=stdin,
            on_output=on_output,
            user=user,
        )
        said = cmd if isinstance(cmd, str) else shlex.join(cmd)
        return _output(result, said, timeout=timeout, check=check)

    def exec_python(
        self,
        code: str,
        *,
        timeout: float | None = None,
        check: bool = True,
        on_output: OnOutput | None = None,
    ) -> Output:
        """Run Python code in the sandbox, in a fresh interpreter with the sandbox's packages.

        See `exec` for the arguments, the result and the errors.
        """
        return run_sync(self.aexec_python(code, timeout=timeout, check=check, on_output=on_output))

    @from_any_loop
    async def aexec_python(
        self,
        code: str,
        *,
        timeout: float | None = None,
        check: bool = True,
        on_output: OnOutput | None = None,
    ) -> Output:
        """The async version of `exec_python`."""
        machine = self.machine
        # A file, not `-c` or standard input: tracebacks then show source lines, and any size works.
        script = f"{machine.layout.tmp}/exec-{secrets.token_hex(6)}.py"
        await machine.write_file(script, code.encode())
        try:
            result = await machine.exec(
                [machine.layout.python, "-u", script], timeout=timeout, on_output=on_output
            )
        finally:
            with contextlib.suppress(FileNotFoundError):
                await machine.remove(script)
        return _output(result, code, timeout=timeout, check=check)

    # --- files -----------------------------------------------------------------------------------

    def read_file(self, path: str) -> bytes:
        """Read a file of the sandbox; relative paths start at its working folder.

        Raises:
            RemoteFileError: With the errno from the sandbox.
        """
        return run_sync(self.machine.read_file(path))

    async def aread_file(self, path: str) -> bytes:
        """The async version of `read_file`."""
        return await on_loop(self.machine.read_file(path))

    def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file in the sandbox atomically, and create its parent folders.

        Raises:
            RemoteFileError: With the errno from the sandbox; the old content is unchanged.
        """
        run_sync(self.machine.write_file(path, _as_bytes(data)))

    async def awrite_file(self, path: str, data: bytes | str) -> None:
        """The async version of `write_file`."""
        await on_loop(self.machine.write_file(path, _as_bytes(data)))

    def ensure_dir(self, path: str) -> None:
        """Create a folder in the sandbox, with its parents, unless it exists."""
        run_sync(self.machine.make_dir(path))

    async def aensure_dir(self, path: str) -> None:
        """The async version of `ensure_dir`."""
        await on_loop(self.machine.make_dir(path))

    # --- models, repositories, notebook -----------------------------------------------------------

    @property
    def model_handles(self) -> tuple[ModelHandle, ...]:
        """The models in the sandbox."""
        return self._running.models

    @property
    def repo_handles(self) -> tuple[RepoHandle, ...]:
        """The repositories in the sandbox."""
        return self._running.repos

    @property
    def jupyter_url(self) -> str:
        """The address of JupyterLab in this sandbox. The first use starts it.

        Raises:
            SandboxStateError: The execution mode has no notebook, or the sandbox is not running.
        """
        if self.config.execution_mode is not ExecutionMode.NOTEBOOK or self._kind != "sandbox":
            raise SandboxStateError(
                "this sandbox has no notebook; use Sandbox with ExecutionMode.NOTEBOOK"
            )
        _ = self._running
        if self._notebook is None:
            self._notebook = open_notebook(self)
        return self._notebook.jupyter_url

    # --- snapshots -------------------------------------------------------------------------------

    def snapshot(self, description: str = "") -> str:
        """Store a copy of the sandbox's files: working folder, home, installed packages.

        Models are not copied; a sandbox made from the snapshot gets them as this one did.

        Returns:
            The snapshot's id, for `from_snapshot`.

        Raises:
            SnapshotError: The snapshot could not be taken. No partial snapshot remains.
        """
        return run_sync(take_snapshot(self._running, description))

    async def asnapshot(self, description: str = "") -> str:
        """The async version of `snapshot`."""
        return await on_loop(take_snapshot(self._running, description))

    @classmethod
    def from_snapshot(cls, snapshot_id: str, config: SandboxConfig | None = None) -> Self:
        """A sandbox that will start with the files of a snapshot. The snapshot does not change.

        Args:
            snapshot_id: The id that `snapshot` returned.
            config: The new sandbox's configuration; by default, the original sandbox's.

        Raises:
            SnapshotError: There is no such snapshot.
        """
        snapshot = find_snapshot(snapshot_id)
        sandbox = cls(config if config is not None else snapshot.config)
        sandbox._snapshot = snapshot
        return sandbox


class Notebook(Protocol):
    """An open notebook session."""

    @property
    def jupyter_url(self) -> str: ...


def _as_bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _output(result: ExecResult, command: str, *, timeout: float | None, check: bool) -> Output:
    stdout = result.stdout.decode(errors="replace")
    stderr = result.stderr.decode(errors="replace")
    if result.timed_out:
        raise CommandTimeoutError(command, timeout or 0.0, stdout, stderr)
    if check and result.exit_code != 0:
        raise CommandFailedError(command, result.exit_code, stdout, stderr)
    return Output(stdout, exit_code=result.exit_code, stderr=stderr)
