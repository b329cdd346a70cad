"""What all sessions share: they run code one piece at a time and keep the results.

A session knows nothing about tools, protocols or vendors; the packages above provide those.
"""

from __future__ import annotations

import atexit
import os
import sys
from abc import ABC, abstractmethod
from html import escape
from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal, Self

from seer._ending import Ending, run_all
from seer._sync import calling_loop, from_any_loop, on_loop, run_sync
from seer._wiring import OpenServer, open_session_server
from seer.errors import SandboxStateError
from seer.execution._capture import OnOutput
from seer.execution._prepare import SessionParts, remove_unused
from seer.execution._result import ExecutionResult, Status
from seer.execution._turns import Execution, Turns
from seer.workspace import Workspace

SessionKind = Literal["local", "notebook", "cli"]

RECORDED = "SEER_RECORDED_TOOLS"
"""A variable that marks a tool server as replayed: a recorded run answers its tool calls."""


class Session(ABC):
    """Where an agent's code runs.

    Each blocking method has an async twin whose name begins with `a`. Both kinds can be mixed, from
    several threads and clients at once, because executions take turns.
    """

    kind: ClassVar[SessionKind]

    def __init__(self, parts: SessionParts) -> None:
        """Called by the `create_*_session` functions."""
        self._name = parts.name
        self._workspace = parts.workspace
        self._machines = parts.machines
        self._private = parts.private
        self._unused = parts.unused
        self._turns = Turns(
            parts.private.outputs,
            run=self._run,
            send_interrupt=self._send_interrupt,
            kill=self._kill,
        )
        self._closed = False
        self._end = Ending(self._run_ending_steps)
        self._made_in = calling_loop()
        self._process = os.getpid()
        self._gates = {id(library.gate) for library in parts.workspace.libraries}
        """The ids of the gates that its libraries call; a library without a gate adds the id of
        None."""
        self._server: OpenServer | None = None

    # --- what it is ---------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        """Unique on this machine."""
        return self._private.name

    @property
    def name(self) -> str:
        """What people call it; also the name of its tool server."""
        return self._name

    @property
    def workspace(self) -> Workspace:
        """What the agent can import and read."""
        return self._workspace

    @property
    def workspace_dir(self) -> PurePath:
        """The agent's folder: on this host, or as seen in the session's sandbox."""
        return self._machines.workspace_dir

    @property
    def callers(self) -> dict[str, str]:
        """The caller's name under which each served library's gate records this session's calls."""
        return self._machines.callers

    def about(self) -> dict[str, Any]:
        """The session and its limits, as plain data for the records of runs."""
        return {"kind": self.kind, "name": self.name, **self._machines.about()}

    @property
    def model_info_text(self) -> str:
        """What the agent should be told about the session: models, libraries, skills."""
        parts = [
            self._describe(),
            self.workspace.get_library_docs(),
            self.workspace.get_skill_docs(),
        ]
        return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"

    @property
    def mcp_config(self) -> dict[str, dict[str, Any]]:
        """The session's tool server, in the form that agents' configurations use.

        It is a plain dict `{name: {"type": "stdio", "command", "args", "env"}}` without secrets.
        The server reaches this process through a private socket, which the first access opens.

        Raises:
            SandboxStateError: The session is closed.
        """
        return run_sync(self.amcp_config())

    @from_any_loop
    async def amcp_config(self) -> dict[str, dict[str, Any]]:
        """Like `mcp_config`."""
        self._check_open()
        if self._machines.runs_nothing:
            return _recorded_server(self.name)
        if self._server is None:
            self._server = await open_session_server(self)
        return self._server.mcp_config

    @property
    def open_mcp_config(self) -> dict[str, dict[str, Any]]:
        """`mcp_config` if it was read before, else empty. Reading this opens nothing."""
        return {} if self._server is None else self._server.mcp_config

    @property
    def notebook_path(self) -> Path | None:
        """The notebook's file on this host, if the session has one."""
        return None

    @property
    def is_closed(self) -> bool:
        """Whether it is closed, or belongs to the parent of this forked process."""
        return self._closed or self._process != os.getpid()

    @property
    def is_replayed(self) -> bool:
        """Whether its machine is replayed, so that the record answers its tool calls."""
        return self._machines.runs_nothing

    # --- what it does -------------------------------------------------------------------------

    def exec(
        self, code: str, *, timeout: float | None = None, on_output: OnOutput | None = None
    ) -> ExecutionResult:
        """Run code and wait for its end.

        Args:
            code: Python in a local or notebook session, a shell command in a cli session.
            timeout: Seconds until it is interrupted; the result then says so.
            on_output: Called with each piece of output while the code runs, on Seer's own thread;
                it must not block.

        Raises:
            SandboxStateError: The session is closed.
            StartError: A kernel was needed and did not start.
        """
        return run_sync(self.aexec(code, timeout=timeout, on_output=on_output))

    @from_any_loop
    async def aexec(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Like `exec`. Cancelling it interrupts the code."""
        self._check_runs()
        execution = self._turns.submit(code, timeout=timeout, on_output=on_output)
        return await self._turns.complete(execution)

    def submit(
        self, code: str, *, timeout: float | None = None, on_output: OnOutput | None = None
    ) -> str:
        """Put code in the queue and return its result's id at once; see `result`."""
        return run_sync(self.asubmit(code, timeout=timeout, on_output=on_output))

    @from_any_loop
    async def asubmit(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> str:
        """Like `submit`."""
        self._check_runs()
        return self._turns.submit(code, timeout=timeout, on_output=on_output).result_id

    def result(self, result_id: str, *, wait: float | None = 0.0) -> ExecutionResult:
        """The result of an execution, or its state so far.

        Args:
            result_id: From `submit` or an earlier result; the last hundred are kept.
            wait: Seconds to wait for its end; None waits as long as it takes.

        Raises:
            LookupError: No result has this id.
        """
        return run_sync(self._turns.result(result_id, wait))

    async def aresult(self, result_id: str, *, wait: float | None = 0.0) -> ExecutionResult:
        """Like `result`."""
        return await on_loop(self._turns.result(result_id, wait))

    def result_ids(self) -> list[str]:
        """The ids of all results that are kept, oldest first."""
        return run_sync(self.aresult_ids())

    @from_any_loop
    async def aresult_ids(self) -> list[str]:
        """Like `result_ids`."""
        return [execution.result_id for execution in self._turns.all]

    def read_output(self, result_id: str, *, offset: int = 0, length: int = 20_000) -> str:
        """A part of everything an execution printed, by byte offset.

        Raises:
            LookupError: No result has this id.
        """
        return run_sync(self.aread_output(result_id, offset=offset, length=length))

    @from_any_loop
    async def aread_output(self, result_id: str, *, offset: int = 0, length: int = 20_000) -> str:
        """Like `read_output`."""
        if offset < 0 or not 0 < length <= 4 * 1024 * 1024:
            raise ValueError(
                f"offset={offset!r}, length={length!r}: offset must be 0 or more, and length 1 "
                "to 4194304"
            )
        return self._turns.find(result_id).capture.transcript.read(offset, length)

    def read_file(self, path: str) -> bytes:
        """Read a file of the workspace.

        The path is resolved in the agent's machine, so planted links cannot lead out of it.

        Raises:
            RemoteFileError: The file cannot be read; the error has the errno.
        """
        return run_sync(self.aread_file(path))

    @from_any_loop
    async def aread_file(self, path: str) -> bytes:
        """Like `read_file`."""
        self._check_open()
        return await (await self._machines.prepared()).machine.read_file(path)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the workspace; missing folders are created.

        Raises:
            RemoteFileError: The file cannot be written; the error has the errno.
        """
        run_sync(self.awrite_file(path, data))

    @from_any_loop
    async def awrite_file(self, path: str, data: bytes) -> None:
        """Like `write_file`."""
        self._check_open()
        await (await self._machines.prepared()).machine.write_file(path, data)

    def interrupt(self, result_id: str | None = None) -> bool:
        """Stop the running execution, or the one with this id; False when there is none.

        The code gets a keyboard interrupt. Code that does not stop within seconds is killed.
        """
        return run_sync(self._turns.interrupt(result_id))

    async def ainterrupt(self, result_id: str | None = None) -> bool:
        """Like `interrupt`."""
        return await on_loop(self._turns.interrupt(result_id))

    def restart(self) -> None:
        """Start over: all variables are gone, files and libraries stay.

        Raises:
            SandboxStateError: The session is closed.
        """
        run_sync(self.arestart())

    @from_any_loop
    async def arestart(self) -> None:
        """Like `restart`."""
        self._check_open()
        await self._turns.kill_running()
        async with self._turns.turn:
            await self._begin_afresh()

    def close(self) -> None:
        """End the session and all that runs in it.

        Closing twice is harmless. After a failure, a second call retries the steps that failed.

        Raises:
            EndingError: Several steps failed; a single failure is raised as it is.
        """
        run_sync(self.aclose())

    @from_any_loop
    async def aclose(self) -> None:
        """Like `close`."""
        self._check_process()
        self._closed = True
        _open.pop(self.session_id, None)
        await self._end()

    def abandon(self) -> None:
        """Remove the session's own files without ending it in order.

        For a process that ends without closing it; its machine ends with the process.
        """
        self._private.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process == os.getpid():
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process == os.getpid():
            await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ({self.session_id})>"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"

    # --- what each kind does itself -----------------------------------------------------------

    @abstractmethod
    async def _run(self, execution: Execution) -> Status:
        """Run one execution when its turn has come. Must end soon after `_kill`."""

    @abstractmethod
    async def _send_interrupt(self, execution: Execution) -> None:
        """Ask the running code to stop. It can be called several times."""

    @abstractmethod
    async def _kill(self, execution: Execution) -> None:
        """Kill what runs the code; `_run` then ends."""

    @abstractmethod
    async def _begin_afresh(self) -> None:
        """Discard all state; nothing is running."""

    @abstractmethod
    async def _shut_down(self) -> None:
        """End everything that runs. It is called again if it failed."""

    @abstractmethod
    def _describe(self) -> str:
        """What the session is, in words for the agent."""

    # --- the machinery ------------------------------------------------------------------------

    def _opened(self) -> None:
        """Called once the session works."""
        if not _open:
            atexit.unregister(_tidy_up)
            atexit.register(_tidy_up)
        _open[self.session_id] = self
        for owner in self._machines.owners:
            owner.add_dependent(self)

    @property
    def is_orphaned(self) -> bool:
        """Whether the event loop that created it has been closed."""
        return self._made_in is not None and self._made_in.is_closed()

    async def owner_ends(self, owner: object) -> None:
        """Close when its sandbox ends, or the last sandbox that served one of its libraries."""
        self._gates.discard(id(owner))
        if owner is self._machines.sandbox or (self.workspace.libraries and not self._gates):
            await self.aclose()

    def _check_runs(self) -> None:
        self._check_open()
        if self._machines.runs_nothing:
            raise SandboxStateError(
                "this session is replayed and runs no code: the record has answers only to the tool"
                " calls of agents, not to what the program itself ran"
            )

    async def _run_ending_steps(self) -> None:
        self._turns.refuse_more()
        steps = [self._close_server, self._shut_down, self._turns.close, self._remove_files]
        await run_all(f"session {self.name!r}", steps)

    async def _close_server(self) -> None:
        if self._server is not None:
            await self._server.close()
            self._server = None

    async def _remove_files(self) -> None:
        self._private.remove()
        remove_unused(self._unused)

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise SandboxStateError(
                f"session {self.name!r} belongs to process {self._process}, and this process is a "
                f"fork of it; create another session here"
            )

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise SandboxStateError(f"session {self.name!r} is closed; create another one")


def _recorded_server(name: str) -> dict[str, dict[str, Any]]:
    """The tool server of a session whose machine is replayed; `run_agent` recognizes it."""
    message = f"the tools of {name!r} are replayed from a record, which only run_agent can do"
    args = ["-c", f"raise SystemExit({message!r})"]
    env = {RECORDED: "1"}
    return {name: {"type": "stdio", "command": sys.executable, "args": args, "env": env}}


_open: dict[str, Session] = {}
"""The open sessions of this process, by id."""


def open_sessions() -> list[Session]:
    """All sessions of this process that are open, oldest first.

    A session whose event loop has been closed does not count, because its program has ended.
    """
    # A copy, because sessions open and close on other threads.
    return [session for session in list(_open.values()) if not session.is_orphaned]


# The parent process closes its own sessions.
os.register_at_fork(after_in_child=_open.clear)


def _tidy_up() -> None:
    """At the end of the process: remove sessions' files; their processes end by themselves."""
    for session in list(_open.values()):
        session.abandon()
