"""The executions of a session: they wait for their turn, run one at a time, and are kept.

This module knows nothing about kernels or shells; the session runs the code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

from seer.errors import SandboxStateError
from seer.execution._capture import Capture, OnOutput
from seer.execution._result import ExecutionResult, Status
from seer.rpc.client._tool_call import current as current_tool_call

logger = logging.getLogger(__name__)

KEPT = 100
"""The maximum number of results that a session keeps; fewer if together they are too large."""
KEPT_MEMORY = 256 * 1024**2
KEPT_DISK = 2 * 1024**3
WAITING = 1000
"""Executions that may wait for their turn."""
INTERRUPT_EVERY = 1.0
GRACE = 5.0
"""Seconds an interrupted execution has to end before its kernel or shell is killed."""


class Execution:
    """One piece of code and its state so far: queued, running, ended. Only Seer's loop uses it."""

    def __init__(
        self,
        result_id: str,
        code: str,
        *,
        folder: Path,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        background: bool = False,
        cell: str = "",
    ) -> None:
        self.result_id = result_id
        self.code = code
        self.timeout = timeout
        self.capture = Capture(result_id, folder, on_output)
        self.status: Status = "queued"
        self.exit_code: int | None = None
        self.extra: dict[str, str] = {}
        self.stop_reason: Literal["interrupted", "timeout"] | None = None
        self.background = background
        """Whether it runs in the background instead of waiting for its turn."""
        self.cell = cell
        """In a notebook: the id of the cell it runs."""
        self.tool_call = current_tool_call()
        """The tool call that submitted it; empty if none did."""
        self._started = 0.0
        self._ended = 0.0
        self.done = asyncio.Event()

    def start(self) -> None:
        """Mark it as running."""
        self.status = "running"
        self._started = time.monotonic()

    def end(self, status: Status) -> None:
        """Mark it as ended, and as interrupted or timed out if that is why."""
        if self.stop_reason is not None and status in ("error", "died"):
            status = self.stop_reason
        self.status = status
        self._ended = time.monotonic()
        self._started = self._started or self._ended
        self.capture.transcript.close()
        self.done.set()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.done.is_set()

    def result(self) -> ExecutionResult:
        """Its state so far, or how it ended."""
        capture = self.capture
        until = self._ended or (time.monotonic() if self._started else 0.0)
        text = capture.transcript.shown(self.result_id)
        if capture.notes:
            text = "\n".join([*(f"[{note}]" for note in capture.notes), text])
        return ExecutionResult(
            result_id=self.result_id,
            status=self.status,
            outputs=tuple(capture.outputs),
            error=capture.error,
            duration=until - self._started,
            notes=tuple(capture.notes),
            text=text,
            exit_code=self.exit_code,
            extra=dict(self.extra),
        )


class Turns:
    """The executions of one session. Only Seer's loop uses it."""

    def __init__(
        self,
        folder: Path,
        *,
        run: Callable[[Execution], Coroutine[Any, Any, Status]],
        send_interrupt: Callable[[Execution], Awaitable[None]],
        kill: Callable[[Execution], Awaitable[None]],
    ) -> None:
        """Make the queue.

        Args:
            folder: For long outputs.
            run: Runs an execution when its turn has come. Must end soon after `kill`.
            send_interrupt: Asks the running code to stop. It can be called several times.
            kill: Kills the kernel or shell; then `run` ends.
        """
        self._folder = folder
        self._run = run
        self._send_interrupt = send_interrupt
        self._kill = kill
        self._executions: OrderedDict[str, Execution] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: Execution | None = None
        self._count = 0
        self._closed = False
        self.turn = asyncio.Lock()
        """Held while code runs, and while the kernel or shell that runs it is replaced."""

    @property
    def all(self) -> list[Execution]:
        """Every execution that is kept, oldest first."""
        return list(self._executions.values())

    def submit(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        background: bool = False,
        cell: str = "",
    ) -> Execution:
        """Put code in the queue.

        Raises:
            SandboxStateError: Too many are waiting.
            ValueError: The code is not text.
        """
        check_text(code)
        if len(self._tasks) >= WAITING:
            raise SandboxStateError(f"{WAITING} executions are waiting already; wait for some")
        self._count += 1
        execution = Execution(
            f"e{self._count}",
            code,
            folder=self._folder,
            timeout=timeout,
            on_output=on_output,
            background=background,
            cell=cell,
        )
        self._executions[execution.result_id] = execution
        self._forget_oldest()
        task = asyncio.create_task(self._drive(execution))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return execution

    def find(self, result_id: str) -> Execution:
        """An execution by its id.

        Raises:
            LookupError: No execution has this id.
        """
        execution = self._executions.get(result_id)
        if execution is None:
            known = ", ".join(list(self._executions)[-5:]) or "none yet"
            raise LookupError(f"no result {result_id!r} in this session; the latest are: {known}")
        return execution

    async def complete(self, execution: Execution) -> ExecutionResult:
        """Wait for the end. Cancelling this interrupts the code."""
        try:
            await execution.done.wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._stop(execution))
            raise
        return execution.result()

    async def result(self, result_id: str, wait: float | None) -> ExecutionResult:
        """The state of an execution after at most `wait` seconds; None waits for its end."""
        execution = self.find(result_id)
        if wait is None or wait > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await execution.done.wait()
        return execution.result()

    async def interrupt(self, result_id: str | None) -> bool:
        """Stop what runs, or the execution with this id; False if it has ended already."""
        execution = self._running if result_id is None else self.find(result_id)
        if execution is None or execution.is_over:
            return False
        await self._stop(execution)
        return True

    async def kill_running(self) -> None:
        """Kill what runs now, if anything does."""
        if self._running is not None:
            self._running.stop_reason = "interrupted"
            await self._kill(self._running)

    def refuse_more(self) -> None:
        """Start nothing more; a running execution counts as interrupted."""
        self._closed = True
        for execution in self._executions.values():
            if not execution.is_over:
                execution.stop_reason = "interrupted"

    async def close(self) -> None:
        """Cancel the remaining executions; the kernel or shell is gone."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget_oldest(self) -> None:
        """Limit the memory of all results, because an agent decides how much it prints."""
        captures = [execution.capture for execution in self._executions.values()]
        memory = sum(capture.memory for capture in captures)
        disk = sum(capture.transcript.on_disk for capture in captures)
        for key, execution in list(self._executions.items()):
            if len(self._executions) <= KEPT and memory <= KEPT_MEMORY and disk <= KEPT_DISK:
                return
            if execution.is_over:
                memory -= execution.capture.memory
                disk -= execution.capture.transcript.on_disk
                execution.capture.discard()
                del self._executions[key]

    async def _drive(self, execution: Execution) -> None:
        status: Status = "died"
        try:
            async with contextlib.nullcontext() if execution.background else self.turn:
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
            # Every failure becomes the result of the execution, so that its caller never hangs.
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
                await self._interrupt_or_kill(execution, run)
            return await run
        finally:
            if not run.done():
                run.cancel()
                await asyncio.gather(run, return_exceptions=True)

    async def _stop(self, execution: Execution) -> None:
        if execution.is_over:
            return
        execution.stop_reason = execution.stop_reason or "interrupted"
        if execution.status == "running":
            ended = asyncio.create_task(execution.done.wait())
            try:
                await self._interrupt_or_kill(execution, ended)
            finally:
                ended.cancel()

    async def _interrupt_or_kill(self, execution: Execution, ended: asyncio.Task[Any]) -> None:
        """Interrupt the execution, and kill the kernel or shell if it does not end."""
        for _ in range(int(GRACE / INTERRUPT_EVERY)):
            await self._send_interrupt(execution)
            await asyncio.wait([ended], timeout=INTERRUPT_EVERY)
            if ended.done():
                return
        execution.capture.note(
            f"the code did not end within {GRACE:g} s of the interrupt and was killed"
        )
        await self._kill(execution)
        await asyncio.wait([ended], timeout=GRACE)


def check_text(text: str) -> None:
    """Check that a text can be encoded as UTF-8.

    Raises:
        ValueError: It has a lone surrogate; the message says where.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = text[error.start]
        raise ValueError(f"lone surrogate {found!r} at position {error.start}") from None
