"""What every session is: code goes in one piece at a time, results come out and stay to be had.

A session knows nothing of tools, protocols or vendors; those are served from above.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from pathlib import PurePath
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from seer._sync import on_loop, run_sync
from seer.errors import SandboxStateError
from seer.execution._capture import OnOutput
from seer.execution._execution import Execution, StopReason
from seer.execution._open import Ready
from seer.execution._registry import add_session, drop_session
from seer.execution._result import ExecutionResult, Status
from seer.execution._tools import ToolDoor, open_tool_door
from seer.workspace import Workspace

logger = logging.getLogger(__name__)

SessionKind = Literal["local", "notebook", "cli"]

_KEPT = 100
"""Results that stay to be had by their ids."""
_INTERRUPT_EVERY = 1.0
_GRACE = 5.0
"""Seconds an interrupted execution has to end before what runs it is killed."""


class Session(ABC):
    """Where an agent's code runs.

    Blocking methods have a twin that begins with `a` and is awaited; both kinds can be mixed, and
    both may be used from several threads and clients at once: executions take turns.
    """

    kind: ClassVar[SessionKind]

    def __init__(self, ready: Ready) -> None:
        """Made by the `create_*_session` functions, from what they have made ready."""
        self._name = ready.name
        self._workspace = ready.workspace
        self._site = ready.site
        self._private = ready.private
        self._turn = asyncio.Lock()
        self._executions: OrderedDict[str, Execution] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: Execution | None = None
        self._count = 0
        self._closed = False
        self._door: ToolDoor | None = None

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
        return self._site.workspace_dir

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
        """The session's tool server, as agents' own configurations have it.

        It is a plain dict `{name: {"type": "stdio", "command", "args", "env"}}` without secrets;
        the server reaches this process through a private socket.

        Raises:
            SandboxStateError: The session is closed.
        """
        return run_sync(self._open_door())

    # --- what it does -------------------------------------------------------------------------

    def exec(
        self, code: str, *, timeout: float | None = None, on_output: OnOutput | None = None
    ) -> ExecutionResult:
        """Run code and wait for its end.

        Args:
            code: Python in a local or notebook session, a shell command in a cli session.
            timeout: Seconds until it is interrupted; the result then says so.
            on_output: Called with each piece of output as it comes, on Seer's own thread; it must
                not block.

        Raises:
            SandboxStateError: The session is closed.
            StartError: A kernel was needed and did not start.
        """
        return run_sync(self._exec(code, timeout, on_output))

    async def aexec(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Like `exec`. Cancelling it interrupts the code."""
        return await on_loop(self._exec(code, timeout, on_output))

    def submit(
        self, code: str, *, timeout: float | None = None, on_output: OnOutput | None = None
    ) -> str:
        """Put code in the queue and return its result's id at once; see `result`."""
        return run_sync(self._submit_id(code, timeout, on_output))

    async def asubmit(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> str:
        """Like `submit`."""
        return await on_loop(self._submit_id(code, timeout, on_output))

    def result(self, result_id: str, *, wait: float | None = 0.0) -> ExecutionResult:
        """How an execution stands or ended.

        Args:
            result_id: From `submit` or an earlier result; the last hundred are kept.
            wait: Seconds to wait for its end; None waits as long as it takes.

        Raises:
            LookupError: No result has this id.
        """
        return run_sync(self._result(result_id, wait))

    async def aresult(self, result_id: str, *, wait: float | None = 0.0) -> ExecutionResult:
        """Like `result`."""
        return await on_loop(self._result(result_id, wait))

    def result_ids(self) -> list[str]:
        """The ids of all results that are kept, oldest first."""
        return run_sync(self._result_ids())

    async def aresult_ids(self) -> list[str]:
        """Like `result_ids`."""
        return await on_loop(self._result_ids())

    def read_output(self, result_id: str, *, offset: int = 0, length: int = 20_000) -> str:
        """A part of everything an execution printed, by byte offset.

        Raises:
            LookupError: No result has this id.
        """
        return run_sync(self._read_output(result_id, offset, length))

    async def aread_output(self, result_id: str, *, offset: int = 0, length: int = 20_000) -> str:
        """Like `read_output`."""
        return await on_loop(self._read_output(result_id, offset, length))

    def read_file(self, path: str) -> bytes:
        """Read a file of the workspace.

        The path is resolved where the agent's code runs, so links planted there lead nowhere new.

        Raises:
            RemoteFileError: With the errno.
        """
        return run_sync(self._read_file(path))

    async def aread_file(self, path: str) -> bytes:
        """Like `read_file`."""
        return await on_loop(self._read_file(path))

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the workspace; folders are made.

        Raises:
            RemoteFileError: With the errno.
        """
        run_sync(self._write_file(path, data))

    async def awrite_file(self, path: str, data: bytes) -> None:
        """Like `write_file`."""
        await on_loop(self._write_file(path, data))

    def interrupt(self, result_id: str | None = None) -> bool:
        """Stop the running execution, or the one with this id; False when there is none.

        The code gets a keyboard interrupt; what does not end by it within seconds is killed.
        """
        return run_sync(self._interrupt(result_id, "interrupted"))

    async def ainterrupt(self, result_id: str | None = None) -> bool:
        """Like `interrupt`."""
        return await on_loop(self._interrupt(result_id, "interrupted"))

    def restart(self) -> None:
        """Begin afresh: all variables are gone, files and libraries are as they were.

        Raises:
            SandboxStateError: The session is closed.
        """
        run_sync(self._restart())

    async def arestart(self) -> None:
        """Like `restart`."""
        await on_loop(self._restart())

    def close(self) -> None:
        """End the session and all that runs in it. Closing twice is harmless."""
        run_sync(self._close())

    async def aclose(self) -> None:
        """Like `close`."""
        await on_loop(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ({self.session_id})>"

    # --- what each kind does itself -----------------------------------------------------------

    @abstractmethod
    async def _run(self, execution: Execution) -> Status:
        """Run one execution; its turn has come. Must end soon after `_kill`."""

    @abstractmethod
    async def _send_interrupt(self, execution: Execution) -> None:
        """Ask the running code to stop; may be called several times."""

    @abstractmethod
    async def _kill(self, execution: Execution) -> None:
        """Kill what runs the code; `_run` then ends."""

    @abstractmethod
    async def _begin_afresh(self) -> None:
        """Throw away all state; nothing is running."""

    @abstractmethod
    async def _shut_down(self) -> None:
        """End everything; called once."""

    @abstractmethod
    def _describe(self) -> str:
        """What the session is, in words for the agent."""

    # --- the machinery ------------------------------------------------------------------------

    def _opened(self) -> None:
        """Called by the makers of sessions once everything works."""
        add_session(self)

    async def _exec(
        self, code: str, limit: float | None, on_output: OnOutput | None
    ) -> ExecutionResult:
        execution = self._submit(code, limit, on_output)
        try:
            await execution.done.wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._stop(execution, "interrupted"))
            raise
        return execution.result()

    async def _submit_id(self, code: str, limit: float | None, on_output: OnOutput | None) -> str:
        return self._submit(code, limit, on_output).result_id

    def _submit(
        self,
        code: str,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        *,
        background: bool = False,
        cell: str = "",
    ) -> Execution:
        self._check_open()
        self._count += 1
        execution = Execution(
            f"e{self._count}",
            code,
            folder=self._private.outputs,
            timeout=timeout,
            on_output=on_output,
            background=background,
            cell=cell,
        )
        self._executions[execution.result_id] = execution
        over = [key for key, old in self._executions.items() if old.is_over]
        for key in over[: max(0, len(self._executions) - _KEPT)]:
            del self._executions[key]
        task = asyncio.create_task(self._drive(execution))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return execution

    async def _drive(self, execution: Execution) -> None:
        status: Status = "died"
        try:
            async with contextlib.nullcontext() if execution.background else self._turn:
                if execution.stop_reason is not None or self._closed:
                    status = "interrupted"
                    return
                if not execution.background:
                    self._running = execution
                execution.start()
                try:
                    status = await self._run_in_time(execution)
                finally:
                    if self._running is execution:
                        self._running = None
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # The edge of an agent's turn: whatever went wrong is its result, never a hang.
            logger.exception("execution %s failed", execution.result_id)
            execution.capture.note(f"the session failed: {type(error).__name__}: {error}")
        finally:
            execution.end(status)

    async def _run_in_time(self, execution: Execution) -> Status:
        if execution.timeout is None:
            return await self._run(execution)
        run = asyncio.create_task(self._run(execution))
        try:
            await asyncio.wait([run], timeout=execution.timeout)
            if not run.done():
                execution.stop_reason = "timeout"
                execution.capture.note(f"interrupted after {execution.timeout:g} s")
                await self._press(execution, run)
            return await run
        finally:
            if not run.done():
                run.cancel()
                await asyncio.gather(run, return_exceptions=True)

    async def _press(self, execution: Execution, run: asyncio.Task[Status] | None = None) -> None:
        """Interrupt until the execution ends; kill what does not."""
        ended = run if run is not None else asyncio.create_task(_wait_event(execution.done))
        try:
            for _ in range(int(_GRACE / _INTERRUPT_EVERY)):
                await self._send_interrupt(execution)
                await asyncio.wait([ended], timeout=_INTERRUPT_EVERY)
                if ended.done():
                    return
            execution.capture.note(
                f"the code did not end within {_GRACE:g} s of the interrupt and was killed"
            )
            await self._kill(execution)
            await asyncio.wait([ended], timeout=_GRACE)
        finally:
            if run is None:
                ended.cancel()

    async def _stop(self, execution: Execution, reason: StopReason) -> None:
        if execution.is_over:
            return
        execution.stop_reason = execution.stop_reason or reason
        if execution.status == "running":
            await self._press(execution)

    async def _interrupt(self, result_id: str | None, reason: StopReason) -> bool:
        execution = self._running if result_id is None else self._find(result_id)
        if execution is None or execution.is_over:
            return False
        await self._stop(execution, reason)
        return True

    async def _result(self, result_id: str, wait: float | None) -> ExecutionResult:
        execution = self._find(result_id)
        if wait is None or wait > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await execution.done.wait()
        return execution.result()

    async def _read_output(self, result_id: str, offset: int, length: int) -> str:
        if offset < 0 or not 0 < length <= 4 * 1024 * 1024:
            raise ValueError(f"offset={offset!r}, length={length!r}: want 0 <= offset, 0 < length")
        return self._find(result_id).capture.transcript.read(offset, length)

    async def _result_ids(self) -> list[str]:
        return list(self._executions)

    async def _read_file(self, path: str) -> bytes:
        self._check_open()
        return await (await self._site.ground()).machine.read_file(path)

    async def _write_file(self, path: str, data: bytes) -> None:
        self._check_open()
        await (await self._site.ground()).machine.write_file(path, data)

    def _find(self, result_id: str) -> Execution:
        execution = self._executions.get(result_id)
        if execution is None:
            known = ", ".join(list(self._executions)[-5:]) or "none yet"
            raise LookupError(f"no result {result_id!r} in this session; the latest are: {known}")
        return execution

    async def _restart(self) -> None:
        self._check_open()
        if self._running is not None:
            self._running.stop_reason = "interrupted"
            await self._kill(self._running)
        async with self._turn:
            await self._begin_afresh()

    async def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        drop_session(self)
        for execution in self._executions.values():
            if not execution.is_over:
                execution.stop_reason = "interrupted"
        if self._door is not None:
            await self._door.close()
        try:
            await self._shut_down()
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._private.remove()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxStateError(f"session {self.name!r} is closed; create another one")

    async def _open_door(self) -> dict[str, dict[str, Any]]:
        self._check_open()
        if self._door is None:
            self._door = await open_tool_door(self)
        return self._door.mcp_config


async def _wait_event(event: asyncio.Event) -> None:
    await event.wait()
