"""Run a program on the host and read its output by line. Cancelling kills its process group.

For programs that prepare a sandbox (uv, git, the model fetcher), never for those inside one.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LINE_LIMIT = 1 << 20


@dataclass(frozen=True)
class Finished:
    """How a program ended."""

    exit_code: int
    stdout: str
    stderr: str


async def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: bytes | None = None,
    pass_fds: Sequence[int] = (),
    on_stdout: Callable[[str], None] | None = None,
    on_stderr: Callable[[str], None] | None = None,
) -> Finished:
    """Run `argv` without a shell.

    Args:
        argv: The program and its arguments.
        env: The whole environment.
        cwd: Working folder.
        stdin: Written to the program's standard input. The input then stays open until the program
            ends, so that the program notices when this process dies.
        pass_fds: Descriptors that the program inherits.
        on_stdout: Called with each line as it arrives.
        on_stderr: The same for standard error.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=dict(env),
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=pass_fds,
        start_new_session=True,
        limit=_LINE_LIMIT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        if process.stdin is not None and stdin is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(stdin)
                await process.stdin.drain()
        out, err = await asyncio.gather(
            _lines(process.stdout, on_stdout), _lines(process.stderr, on_stderr)
        )
        exit_code = await process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return Finished(exit_code, out, err)


async def _lines(stream: asyncio.StreamReader, on_line: Callable[[str], None] | None) -> str:
    parts: list[bytes] = []
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            line = end.partial
            if not line:
                break
        except asyncio.LimitOverrunError as overrun:
            line = await stream.readexactly(overrun.consumed)
        parts.append(line)
        if on_line is not None:
            on_line(line.decode(errors="replace").rstrip("\r\n"))
    return b"".join(parts).decode(errors="replace")
