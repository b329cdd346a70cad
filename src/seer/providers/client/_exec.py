"""Run a command to its end, with input, a timeout and captured output."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from seer.errors import SandboxLostError, SandboxStateError
from seer.providers._spec import ExecResult, OnOutput
from seer.providers.client._interfaces import Process

logger = logging.getLogger(__name__)

CAPTURE_LIMIT = 256 * 1024 * 1024
"""How much of each stream `Machine.exec` keeps, unless told otherwise."""
_START_PATIENCE = 30.0


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
        capture_limit: How much of each stream is kept.

    Raises:
        SandboxLostError: The machine is gone, or does not start the command.
    """
    try:
        # A machine that does not even start a command in this time counts as lost.
        async with asyncio.timeout(None if timeout is None else timeout + _START_PATIENCE):
            process = await spawn()
    except TimeoutError:
        raise SandboxLostError(
            f"the sandbox did not start {argv[0]!r} within {timeout} + {_START_PATIENCE:g} s; "
            f"terminate it"
        ) from None
    captured = {"stdout": _Capture(capture_limit), "stderr": _Capture(capture_limit)}

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


class _Capture:
    """The first bytes of a stream, and whether it was longer."""

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
