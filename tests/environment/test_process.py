"""Running a host program: its lines, its end, and cancellation.

It tests the helper itself: no public function runs a program on the host.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from seer.environment._process import run_program

ENV = {"PATH": os.environ["PATH"]}


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def test_output_and_exit_code_are_returned() -> None:
    lines: list[str] = []
    code = "import sys; print('a'); print('b', file=sys.stderr); print('c', end=''); sys.exit(3)"
    ended = await run_program(python(code), env=ENV, on_stdout=lines.append)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, "a\nc", "b\n")
    assert lines == ["a", "c"]


async def test_a_line_without_end_is_not_too_long() -> None:
    ended = await run_program(python("print('x' * 3_000_000)"), env=ENV)
    assert len(ended.stdout) == 3_000_001


async def test_bytes_that_are_no_text_do_no_harm() -> None:
    ended = await run_program(
        python("import os; os.write(1, b'\\xff\\xfe')"), env=ENV, on_stdout=lambda _: None
    )
    assert ended.stdout == "��"


async def test_input_is_written_and_stays_open() -> None:
    code = "import sys; print(sys.stdin.readline(), end='')"
    assert (await run_program(python(code), env=ENV, stdin=b"hello\n")).stdout == "hello\n"


async def test_a_program_that_reads_nothing_is_no_error() -> None:
    ended = await run_program(["true"], env=ENV, stdin=b"x" * 2_000_000)
    assert ended.exit_code == 0


async def test_cancelling_kills_the_whole_group(tmp_path: Path) -> None:
    ready = asyncio.Event()
    pids: list[int] = []

    def started(line: str) -> None:
        pids.append(int(line))
        ready.set()

    code = (
        "import subprocess, sys, time;"
        "print(subprocess.Popen(['sleep', '1000']).pid, flush=True); time.sleep(1000)"
    )
    task = asyncio.create_task(run_program(python(code), env=ENV, on_stdout=started))
    async with asyncio.timeout(20):
        await ready.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(_gone, pids[0])


def _gone(pid: int) -> bool:
    """Whether a process ends soon; one that nobody has collected yet counts as ended."""
    descriptor = None
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        import select

        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)


async def test_an_error_while_reading_kills_the_program() -> None:
    def refuse(_: str) -> None:
        raise ValueError("oops")

    with pytest.raises(ValueError, match="oops"):
        await run_program(
            python("import time; print(1, flush=True); time.sleep(1000)"),
            env=ENV,
            on_stdout=refuse,
        )


async def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run_program(["/no/such/program"], env=ENV)
