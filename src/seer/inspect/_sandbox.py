"""Inspect's sandbox `seer`. Each sample has its own sandbox."""

import errno
import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from seer._sync import on_loop
from seer.environment import Sandbox, SandboxConfig
from seer.errors import ConfigError, RemoteFileError, SandboxLostError, UserUnsupportedError

_NO_SUCH_PROGRAM = 127


class SeerConfig(BaseModel, frozen=True, extra="forbid"):
    """The configuration of a sample's sandbox: some fields of `SandboxConfig`, and `users`.

    Use it as `sandbox=SandboxEnvironmentSpec("seer", SeerConfig(...))`.
    """

    users: bool = False
    """Whether `exec(user=...)` works, including `root`; see `LocalOptions.users`."""
    gpu: str | None = None
    provider: str = "local"
    python_packages: tuple[str, ...] = ()
    network: Literal["full", "none", "host"] | tuple[str, ...] = "none"
    env: dict[str, str] = {}
    memory: int | str | None = None
    disk: int | str | None = None
    cpus: float | None = None
    isolation: Literal["auto", "bubblewrap", "landlock", "none"] = "auto"

    def sandbox(self) -> Sandbox:
        """Make the sandbox, without starting it."""
        fields: dict[str, Any] = self.model_dump(exclude={"users"})
        options = {"users": True} if self.users else None
        return Sandbox(SandboxConfig(**fields, provider_options=options))


@sandboxenv(name="seer")  # pyright: ignore[reportUntypedClassDecorator]
class SeerSandboxEnvironment(SandboxEnvironment):
    """Inspect's interface to a Seer sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self.sandbox = sandbox
        """The Seer sandbox, which has been started."""

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        """Start a sample's sandbox.

        Raises:
            ConfigError: The configuration is not a `SeerConfig`.
            StartError: The sandbox did not start.
        """
        if config is None:
            config = SeerConfig()
        if not isinstance(config, SeerConfig):
            raise ConfigError("sandbox", config, "must be 'seer', alone or with a SeerConfig")
        sandbox = config.sandbox()
        await sandbox.astart()
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End a sample's sandbox and everything that runs in it."""
        for environment in environments.values():
            await environment.as_type(SeerSandboxEnvironment).sandbox.aterminate()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read the configuration from a log."""
        return SeerConfig.model_validate(config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; see `SandboxEnvironment.exec`. It is not retried after a timeout."""
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            done = await on_loop(
                self.sandbox.machine.exec(
                    cmd,
                    env=env,
                    cwd=cwd,
                    stdin=input.encode() if isinstance(input, str) else input,
                    timeout=timeout,
                    capture_limit=limit,
                    user=user,
                ),
                settle=True,
            )
        except UserUnsupportedError as error:
            raise SandboxUserUnsupportedError(str(error)) from error
        except RemoteFileError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise PermissionError(error.errno, error.strerror, error.filename) from error
            return ExecResult(False, _NO_SUCH_PROGRAM, "", str(error))
        stdout = done.stdout.decode(errors="replace")
        if done.timed_out:
            raise TimeoutError(f"{shlex.join(cmd)[:200]} did not finish within {timeout} s")
        if done.truncated:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout
            )
        stderr = done.stderr.decode(errors="replace")
        # A shell reports a command that ended by a signal as 128 plus the signal.
        code = done.exit_code if done.exit_code >= 0 else 128 - done.exit_code
        return ExecResult(code == 0, code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, and create its parent folders."""
        with _plain_errors(file):
            await self.sandbox.awrite_file(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file as text or as bytes."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        machine = self.sandbox.machine
        with _plain_errors(file):
            data = await on_loop(machine.read_file(file, length=limit + 1))
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """The command that opens a shell in the sandbox.

        Raises:
            ConnectionError: The sandbox is gone.
            SandboxUserUnsupportedError: The sandbox has only one user.
        """
        try:
            sandbox_id = self.sandbox.sandbox_id
            users = self.sandbox.machine.users
        except SandboxLostError as error:
            raise ConnectionError(str(error)) from error
        if user is not None and not users:
            raise SandboxUserUnsupportedError(f"user={user!r}: the sandbox has only one user")
        command = [sys.executable, "-m", "seer.inspect", sandbox_id, *([user] if user else [])]
        return SandboxConnection(type="seer", command=shlex.join(command), container=sandbox_id)


@contextmanager
def _plain_errors(file: str) -> Generator[None]:
    """Raise the sandbox's file errors as the builtin exceptions that Inspect expects."""
    try:
        yield
    except RemoteFileError as error:
        raise OSError(error.errno, error.strerror, file) from error
