"""Attempts as processes on this machine."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seer.sweeps._place import GUARD, Began, Ended, Order, Runner, ended, to_its_end


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
    report: dict[str, Any] | None = None
    try:
        guard.stdin.write(json.dumps(order.to_guard()).encode() + b"\n")
        async for line in guard.stdout:
            said: dict[str, Any] = json.loads(line)
            if "pid" in said:
                where = f"{socket.gethostname()}:{said['pid']}"
                began(where)
            else:
                report = said
    finally:
        guard.stdin.close()
        # Until the guard has ended, and with it the program.
        await to_its_end(guard.wait())
    return ended(report, where)
