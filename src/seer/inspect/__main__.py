"""`python -m seer.inspect SANDBOX [USER]` opens a shell in a running sandbox, for debugging.

It does not start or end the sandbox, and the evaluation continues meanwhile.
"""

import asyncio
import os
import shutil
import sys
import termios
import tty
from contextlib import suppress

from seer.providers import Machine, Process, TerminalSize, get_provider


async def shell(machine: Machine, user: str | None) -> int:
    """Run a shell in this terminal until it ends, and return its exit code."""
    size = shutil.get_terminal_size()
    process = await machine.spawn(
        ["/bin/bash"],
        env={"TERM": os.environ.get("TERM", "dumb")},
        pty=TerminalSize(rows=size.lines, columns=size.columns),
        user=user,
    )
    typing = asyncio.create_task(_type(process))
    async for _, data in process.output():
        os.write(1, data)
    typing.cancel()
    with suppress(asyncio.CancelledError):
        await typing
    return await process.wait()


async def _type(process: Process) -> None:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[bytes] = asyncio.Queue()
    loop.add_reader(0, lambda: waiting.put_nowait(os.read(0, 4096)))
    try:
        while data := await waiting.get():
            await process.write(data)
        loop.remove_reader(0)
        await process.close_stdin()
    finally:
        loop.remove_reader(0)


async def _main() -> int:
    machine = await get_provider("local").find(sys.argv[1])
    return await shell(machine, sys.argv[2] if len(sys.argv) > 2 else None)


def main() -> int:
    """Run the shell, and restore the terminal afterwards."""
    before = termios.tcgetattr(0) if os.isatty(0) else None
    if before is not None:
        tty.setraw(0)
    try:
        return asyncio.run(_main())
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, before)


if __name__ == "__main__":
    sys.exit(main())
