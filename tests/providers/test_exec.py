"""`Machine.exec` in terms of `spawn`, with a process that follows a script."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from seer.errors import SandboxStateError
from seer.providers import Machine, Process, Stream, TerminalSize


class ScriptedProcess(Process):
    """Prints its prepared output, then ends or waits until it is killed."""

    def __init__(self, printed: list[tuple[Stream, bytes]], *, ends: bool, eats: bool) -> None:
        self._printed = printed
        self._ended = asyncio.Event()
        self._eats = eats
        self.killed = self.closed = False
        self.fed = b""
        self.stdin_closed = False
        if ends:
            self._ended.set()

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        for item in self._printed:
            yield item
        await self._ended.wait()

    async def write(self, data: bytes) -> None:
        if not self._eats:
            raise SandboxStateError("the command has ended")
        self.fed += data

    async def close_stdin(self) -> None:
        self.stdin_closed = True
        self._ended.set()

    async def signal(self, number: int) -> None: ...

    async def resize(self, size: TerminalSize) -> None: ...

    async def wait(self) -> int:
        await self._ended.wait()
        return -9 if self.killed else 0

    async def kill(self) -> None:
        self.killed = True
        self._ended.set()

    async def release(self) -> None: ...

    async def close(self) -> None:
        self.closed = True


class ScriptedMachine(Machine):
    """Runs one scripted process."""

    def __init__(self, process: ScriptedProcess) -> None:
        self.process = process

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        pty: TerminalSize | None = None,
        user: str | None = None,
    ) -> Process:
        return self.process


ScriptedMachine.__abstractmethods__ = frozenset()


def _machine(
    *printed: tuple[Stream, bytes], ends: bool = True, eats: bool = True
) -> ScriptedMachine:
    process = ScriptedProcess(list(printed), ends=ends, eats=eats)
    return ScriptedMachine(process)  # pyright: ignore[reportAbstractUsage]


async def test_streams_are_kept_apart_and_in_order() -> None:
    machine = _machine(("stdout", b"a"), ("stderr", b"x"), ("stdout", b"b"))
    seen: list[bytes] = []

    def note(stream: Stream, data: bytes) -> None:
        seen.append(data)

    result = await machine.exec(["p"], on_output=note)
    assert (result.stdout, result.stderr, result.exit_code) == (b"ab", b"x", 0)
    assert seen == [b"a", b"x", b"b"]
    assert machine.process.closed


async def test_a_timeout_kills_and_keeps_what_was_printed() -> None:
    machine = _machine(("stdout", b"partial"), ends=False)
    result = await machine.exec(["p"], timeout=0.01)
    assert result.timed_out
    assert (result.stdout, result.exit_code) == (b"partial", -9)
    assert machine.process.killed


async def test_each_stream_is_cut_at_the_limit_with_a_mark() -> None:
    machine = _machine(("stdout", b"12345"), ("stdout", b"678"), ("stderr", b"12"))
    result = await machine.exec(["p"], capture_limit=6)
    assert result.stdout.startswith(b"123456\n[output cut here")
    assert result.stderr == b"12"
    assert result.truncated


async def test_output_of_just_the_limit_is_not_cut() -> None:
    result = await _machine(("stdout", b"123456")).exec(["p"], capture_limit=6)
    assert (result.stdout, result.truncated) == (b"123456", False)


async def test_input_is_fed_and_ended() -> None:
    machine = _machine(ends=False)
    await machine.exec(["p"], stdin=b"input")
    assert machine.process.fed == b"input"
    assert machine.process.stdin_closed


async def test_a_command_that_ends_before_its_input_is_no_error() -> None:
    assert (await _machine(eats=False).exec(["p"], stdin=b"input")).exit_code == 0


async def test_a_failing_callback_ends_the_command() -> None:
    machine = _machine(("stdout", b"a"), ends=False)

    def fail(stream: Stream, data: bytes) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        await machine.exec(["p"], on_output=fail)
    assert machine.process.closed


async def test_cancelling_closes_the_command() -> None:
    machine = _machine(("stdout", b"a"), ends=False)
    seen = asyncio.Event()

    def note(stream: Stream, data: bytes) -> None:
        seen.set()

    task = asyncio.create_task(machine.exec(["p"], on_output=note))
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert machine.process.closed
