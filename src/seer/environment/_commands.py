"""What one does with a running sandbox: run commands in it, read and write its files."""

import contextlib
import secrets
import shlex
from collections.abc import Mapping, Sequence

from seer._sync import on_loop, run_sync
from seer.environment._lifetime import Lifetime
from seer.environment._output import Output
from seer.errors import CommandFailedError, CommandTimeoutError
from seer.providers import ExecResult, OnOutput


class Commands(Lifetime):
    """A sandbox as far as it is worked in; see `Sandbox`."""

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
            cmd: A text for bash, or a program and its arguments, which no shell reads.
            timeout: Seconds after which the command and all it started are killed.
            check: Raise when the command fails.
            cwd: Where to run it; the sandbox's working folder by default.
            env: Added to the sandbox's environment.
            stdin: What the command can read.
            on_output: Called with (`"stdout"` or `"stderr"`, bytes) while the command runs.
            user: The sandbox's user to run it as, by name or number; the agent's by default. It
                needs `provider_options={"users": True}`.

        Returns:
            The standard output, a `str` with `.exit_code` and `.stderr`.

        Raises:
            CommandFailedError: The exit status is not zero, and `check` is true.
            CommandTimeoutError: The timeout passed; carries the partial output.
            SandboxLostError: The sandbox ended meanwhile.
            UserUnsupportedError: The sandbox has one user only.
        """
        return run_sync(self._exec(cmd, timeout, check, cwd, env, stdin, on_output, user))

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
        """The twin of `exec`."""
        return await on_loop(self._exec(cmd, timeout, check, cwd, env, stdin, on_output, user))

    async def _exec(
        self,
        cmd: str | Sequence[str],
        timeout: float | None,
        check: bool,
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: bytes | None,
        on_output: OnOutput | None,
        user: str | None,
    ) -> Output:
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
        return run_sync(self._exec_python(code, timeout, check, on_output))

    async def aexec_python(
        self,
        code: str,
        *,
        timeout: float | None = None,
        check: bool = True,
        on_output: OnOutput | None = None,
    ) -> Output:
        """The twin of `exec_python`."""
        return await on_loop(self._exec_python(code, timeout, check, on_output))

    async def _exec_python(
        self, code: str, timeout: float | None, check: bool, on_output: OnOutput | None
    ) -> Output:
        machine = self.machine
        # A file, not `-c` or standard input: tracebacks then show the lines, and size is no matter.
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
        """The twin of `read_file`."""
        return await on_loop(self.machine.read_file(path))

    def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file in the sandbox, whole or not at all; its folders are made.

        Raises:
            RemoteFileError: With the errno from the sandbox; the old content is still there.
        """
        run_sync(self.machine.write_file(path, _as_bytes(data)))

    async def awrite_file(self, path: str, data: bytes | str) -> None:
        """The twin of `write_file`."""
        await on_loop(self.machine.write_file(path, _as_bytes(data)))

    def ensure_dir(self, path: str) -> None:
        """Make a folder in the sandbox, and those above it, where they are missing."""
        run_sync(self.machine.make_dir(path))

    async def aensure_dir(self, path: str) -> None:
        """The twin of `ensure_dir`."""
        await on_loop(self.machine.make_dir(path))


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
