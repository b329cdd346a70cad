"""CLI sessions: shell commands, background jobs and interactive programs."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from seer._sync import from_any_loop, on_loop, run_sync
from seer.errors import RemoteFileError, SandboxLostError, SandboxStateError
from seer.execution._capture import Capture, OnOutput
from seer.execution._machine import MEMORY, Isolation, JailOptions, PreparedMachine, SandboxLike
from seer.execution._prepare import SessionParts, prepare_session
from seer.execution._result import ExecutionError, ExecutionResult, Status
from seer.execution._session import Session, SessionKind
from seer.execution._turns import Execution
from seer.execution.kernel._kernel import describe_exit
from seer.execution.shell._pseudo_terminal import PseudoTerminal
from seer.providers import Process
from seer.rpc.client._tool_call import VARIABLE
from seer.rpc.client._tool_call import current as current_tool_call
from seer.workspace import Workspace

_SCRIPT = Path(__file__).parents[1] / "_inside" / "shell.sh"
_TERMINALS = 32
_LONG_COMMAND = 100_000
"""The longest command in bytes that fits into one argument; a longer one is sent as a file."""


class CliSession(Session):
    """Shell commands, each in a new bash. Folder, variables, functions and options carry over."""

    kind: ClassVar[SessionKind] = "cli"

    def __init__(self, parts: SessionParts) -> None:
        super().__init__(parts)
        self._processes: dict[str, Process] = {}
        self._terminals: dict[str, PseudoTerminal] = {}
        self._states = 0
        self._terminal_count = 0

    # --- beyond what every session does ---------------------------------------------------------

    def start_job(
        self, command: str, *, timeout: float | None = None, on_output: OnOutput | None = None
    ) -> str:
        """Run a command in the background, beside others, and return its result's id.

        It starts from the shell's present state and does not change it. `result` and `read_output`
        show its state, and `interrupt(id)` stops it.
        """
        return run_sync(self.astart_job(command, timeout=timeout, on_output=on_output))

    @from_any_loop
    async def astart_job(
        self,
        command: str,
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> str:
        """Like `start_job`."""
        self._check_runs()
        execution = self._turns.submit(
            command, timeout=timeout, on_output=on_output, background=True
        )
        return execution.result_id

    def jobs(self) -> list[ExecutionResult]:
        """All background jobs whose results are still kept, oldest first."""
        return run_sync(self.ajobs())

    @from_any_loop
    async def ajobs(self) -> list[ExecutionResult]:
        """Like `jobs`."""
        return [e.result() for e in self._turns.all if e.background]

    def open_terminal(
        self, command: str = "bash", *, rows: int = 24, columns: int = 80
    ) -> PseudoTerminal:
        """Start an interactive program on its own terminal.

        Raises:
            SandboxLostError: The machine is gone.
        """
        return run_sync(self.aopen_terminal(command, rows=rows, columns=columns))

    @from_any_loop
    async def aopen_terminal(
        self, command: str = "bash", *, rows: int = 24, columns: int = 80
    ) -> PseudoTerminal:
        """Like `open_terminal`."""
        self._check_runs()
        if len(self._terminals) >= _TERMINALS:
            raise SandboxStateError(f"{_TERMINALS} terminals are open already; close some")
        prepared = await self._machines.prepared()
        self._terminal_count += 1
        terminal_id = f"t{self._terminal_count}"
        terminal = await PseudoTerminal.start(
            terminal_id,
            prepared.machine,
            await self._argv(prepared, command, keep=False),
            env={**_environment(prepared, current_tool_call()), "TERM": "xterm"},
            size=(rows, columns),
            on_close=lambda: self._terminals.pop(terminal_id, None),
        )
        self._terminals[terminal_id] = terminal
        return terminal

    def terminal(self, terminal_id: str) -> PseudoTerminal:
        """An open terminal, by its id.

        Raises:
            LookupError: No open terminal has this id.
        """
        found = self._terminals.get(terminal_id)
        if found is None:
            known = ", ".join(self._terminals) or "none"
            raise LookupError(f"no terminal {terminal_id!r}; open terminals: {known}")
        return found

    # --- what every session does ----------------------------------------------------------------

    async def begin(self) -> None:
        """Prepare the machine, or close the session when that fails."""
        try:
            await self._machines.prepared()
        except BaseException:
            await self._shut_down()
            raise
        self._opened()

    async def _run(self, execution: Execution) -> Status:
        capture = execution.capture
        if "\0" in execution.code:
            capture.fail(ExecutionError(name="CommandFailed", message="the command has a NUL byte"))
            return "error"
        try:
            prepared = await self._machines.prepared()
            process = await prepared.machine.spawn(
                await self._argv(prepared, execution.code, keep=not execution.background),
                env=_environment(prepared, execution.tool_call),
            )
        except (SandboxLostError, RemoteFileError) as error:
            return await self._lost(capture, error)
        self._processes[execution.result_id] = process
        try:
            await _drain(process, capture)
            execution.exit_code = await process.wait()
        except SandboxLostError as error:
            return await self._lost(capture, error)
        finally:
            del self._processes[execution.result_id]
            await process.close()
        if execution.exit_code == 0:
            return "ok"
        if execution.exit_code < 0:
            message = describe_exit("command", execution.exit_code)
        else:
            message = f"exit code {execution.exit_code}"
        capture.error = ExecutionError(name="CommandFailed", message=message)
        return "error"

    async def _lost(self, capture: Capture, error: Exception) -> Status:
        capture.fail(ExecutionError(name="ShellDied", message=str(error)))
        if isinstance(error, SandboxLostError):
            capture.note("the shell's machine is gone; the next command gets a fresh one")
            await self._machines.lost()
        return "died"

    async def _send_interrupt(self, execution: Execution) -> None:
        process = self._processes.get(execution.result_id)
        if process is not None:
            # `_run` also notices that the machine is gone, and reports it.
            with contextlib.suppress(SandboxLostError):
                await process.signal(signal.SIGINT)

    async def _kill(self, execution: Execution) -> None:
        process = self._processes.get(execution.result_id)
        if process is not None:
            await _kill_process(process)

    async def _begin_afresh(self) -> None:
        for process in list(self._processes.values()):
            await _kill_process(process)
        for terminal in list(self._terminals.values()):
            await terminal.aclose()
        self._states += 1

    async def _shut_down(self) -> None:
        try:
            await self._begin_afresh()
        finally:
            await self._machines.close()

    def _describe(self) -> str:
        return (
            "# Session\n\nYour commands run in bash. Folder, variables, functions and options last "
            "from one command to the next. Long-running programs belong in the background."
        )

    # --- the machinery --------------------------------------------------------------------------

    async def _argv(self, prepared: PreparedMachine, command: str, *, keep: bool) -> Sequence[str]:
        base = f"{prepared.machine.layout.run}/{self.session_id}-state{self._states}"
        if len(command.encode()) > _LONG_COMMAND:
            path = f"{base}-{secrets.token_hex(4)}.command"  # jobs run beside other commands
            await prepared.machine.write_file(path, command.encode())
            command = f". {path}"
        # Passed with -c, because bash names a script's file in every error message.
        argv = ["bash", "--noprofile", "--norc", "-c", _SCRIPT.read_text(), "bash"]
        return [*argv, base, "1" if keep else "0", command]


async def _kill_process(process: Process) -> None:
    with contextlib.suppress(SandboxLostError):
        await process.kill()


async def _drain(process: Process, capture: Capture) -> None:
    # An incomplete character waits for its remaining bytes.
    make = codecs.getincrementaldecoder("utf-8")
    decoders = {"stdout": make(errors="replace"), "stderr": make(errors="replace")}
    async for name, data in process.output():
        text = decoders[name].decode(data)
        if text:
            capture.stream(name, text)
        await asyncio.sleep(0)


def _environment(prepared: PreparedMachine, tool_call: str) -> dict[str, str]:
    env = {**prepared.env, "PYTHONPATH": prepared.libraries, "PAGER": "cat", "GIT_PAGER": "cat"}
    return {**env, VARIABLE: tool_call} if tool_call else env


def create_cli_session(
    sandbox: SandboxLike | None = None,
    workspace: Workspace | None = None,
    name: str | None = None,
    *,
    workspace_dir: str | os.PathLike[str] | None = None,
    packages: Sequence[str] = (),
    isolation: Isolation = "auto",
    memory: int | None = MEMORY,
) -> CliSession:
    """Open a shell session in a sandbox, or in a jail on this machine.

    Args:
        sandbox: A started `Sandbox`; None for a jail on this machine.
        workspace: What the agent can import and read.
        name: What to call it; generated by default.
        workspace_dir: Without a sandbox, as for `create_local_session`.
        packages: Without a sandbox, as for `create_local_session`.
        isolation: Without a sandbox, as for `create_local_session`.
        memory: Without a sandbox, as for `create_local_session`.

    Raises:
        IsolationUnavailableError: No jail works here, so nothing was started.
        SandboxStateError: The sandbox is not running.
    """
    jail = JailOptions(
        workspace_dir=workspace_dir, packages=packages, isolation=isolation, memory=memory
    )
    return run_sync(_create(sandbox, workspace, name, jail))


async def acreate_cli_session(
    sandbox: SandboxLike | None = None,
    workspace: Workspace | None = None,
    name: str | None = None,
    *,
    workspace_dir: str | os.PathLike[str] | None = None,
    packages: Sequence[str] = (),
    isolation: Isolation = "auto",
    memory: int | None = MEMORY,
) -> CliSession:
    """Like `create_cli_session`."""
    jail = JailOptions(
        workspace_dir=workspace_dir, packages=packages, isolation=isolation, memory=memory
    )
    return await on_loop(_create(sandbox, workspace, name, jail))


async def _create(
    sandbox: SandboxLike | None, workspace: Workspace | None, name: str | None, jail: JailOptions
) -> CliSession:
    async with prepare_session("cli", sandbox, workspace, name=name, jail=jail) as parts:
        session = CliSession(parts)
        await session.begin()
    return session
