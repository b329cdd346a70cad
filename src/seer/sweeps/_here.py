"""Attempts as processes on this machine."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from seer.sweeps._place import GUARD, Began, Ended, Order, Runner, ended


@dataclass(frozen=True)
class Here:
    """This machine: each attempt is a process, and the operating system shares the cores."""

    @asynccontextmanager
    async def opened(self, program: Path, folder: Path) -> AsyncGenerator[Runner]:
        """See `Place`."""
        yield _run


async def _run(order: Order, began: Began) -> Ended:
    guard = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(GUARD)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdin is not None and guard.stdout is not None
    where = socket.gethostname()
    report: bytes | None = None
    try:
        guard.stdin.write(json.dumps(order.to_guard()).encode() + b"\n")
        async for line in guard.stdout:
            said = json.loads(line)
            if "pid" in said:
                where = f"{socket.gethostname()}:{said['pid']}"
                began(where)
            else:
                report = line
    finally:
        guard.stdin.close()
        await _gone(guard)
    return ended(report, where)


async def _gone(guard: asyncio.subprocess.Process) -> None:
    """Wait until the guard has ended, and with it the program, also when cancelled meanwhile."""
    waiting = asyncio.ensure_future(guard.wait())
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
