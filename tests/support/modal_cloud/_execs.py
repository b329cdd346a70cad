"""Commands run in a sandbox: streams by offset, as Modal's command router serves them."""

import asyncio
import time

from grpclib import GRPCError, Status

from tests.support.containers import Running

_AHEAD = 8 << 20
"""Bytes of output kept for a reader who is behind; then the command waits."""
_BEHIND = 4 << 20
"""Bytes kept for a reader who asks again after its connection broke."""


class Output:
    """One output stream, read by offset."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0
        self._read = 0
        self._ended = False
        self._change = asyncio.Condition()

    async def fill(self, source: asyncio.StreamReader) -> None:
        """Take everything that the command prints, as fast as it is read."""
        try:
            while data := await source.read(256 * 1024):
                async with self._change:
                    await self._change.wait_for(
                        lambda: self._start + len(self._data) - self._read < _AHEAD
                    )
                    self._data += data
                    self._change.notify_all()
        finally:
            async with self._change:
                self._ended = True
                self._change.notify_all()

    async def read(self, offset: int) -> bytes:
        """The bytes at `offset`; empty at the end.

        Raises:
            GRPCError: That is too long ago.
        """
        async with self._change:
            if offset < self._start:
                raise GRPCError(Status.DATA_LOSS, f"output before {self._start} is gone")
            self._read = max(self._read, offset)
            self._change.notify_all()
            await self._change.wait_for(
                lambda: self._ended or offset < self._start + len(self._data)
            )
            found = bytes(self._data[offset - self._start : offset - self._start + 512 * 1024])
            spare = offset - self._start - _BEHIND
            if spare > _BEHIND:
                del self._data[:spare]
                self._start += spare
            return found


class Exec:
    """One command."""

    def __init__(self, running: Running, command: str, *, seconds: int) -> None:
        self._running = running
        self.command = command
        self.stdout, self.stderr = Output(), Output()
        self.received = 0
        """Bytes of standard input that have arrived."""
        self.stdin_closed = False
        self._input = asyncio.Lock()
        self.exit_code: int | None = None
        self.ended = asyncio.Event()
        self._lost = False
        self._deadline = time.monotonic() + seconds if seconds else None
        self._life = asyncio.create_task(self._live())

    async def _live(self) -> None:
        process = self._running.process
        assert process.stdout is not None and process.stderr is not None
        fills = [
            asyncio.create_task(self.stdout.fill(process.stdout)),
            asyncio.create_task(self.stderr.fill(process.stderr)),
        ]
        left = None if self._deadline is None else self._deadline - time.monotonic()
        try:
            async with asyncio.timeout(left):
                self.exit_code = await process.wait()
        except TimeoutError:
            await self._running.kill()
            self.exit_code = -9
        finally:
            self.ended.set()
        await asyncio.gather(*fills)

    async def write(self, offset: int, data: bytes, *, eof: bool) -> None:
        """Feed its standard input; bytes that had already arrived are not fed again.

        Raises:
            GRPCError: There is a gap before `offset`, or it reads no more.
        """
        stdin = self._running.process.stdin
        async with self._input:
            if offset > self.received:
                raise GRPCError(Status.INVALID_ARGUMENT, f"expected offset {self.received}")
            fresh = data[self.received - offset :]
            if self.stdin_closed or stdin is None:
                if fresh:
                    raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed")
                return
            try:
                stdin.write(fresh)
                await stdin.drain()
            except (BrokenPipeError, ConnectionResetError):
                raise GRPCError(Status.FAILED_PRECONDITION, "the process has exited") from None
            self.received += len(fresh)
            if eof:
                self.stdin_closed = True
                stdin.close()

    def lose(self) -> None:
        """Its sandbox has ended."""
        self._lost = True
        self.ended.set()

    async def wait(self) -> int:
        """Its exit code.

        Raises:
            GRPCError: Its sandbox ended first.
        """
        await self.ended.wait()
        if self.exit_code is None:
            raise GRPCError(Status.FAILED_PRECONDITION, "Sandbox has already shut down")
        return self.exit_code
