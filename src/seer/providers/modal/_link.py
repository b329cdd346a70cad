"""Runs commands in a Modal sandbox, and opens streams over a command's input and output.

Modal encrypts the streams between its worker and the SDK. Unlike a tunnel, this also works if the
sandbox has no network.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any

import modal

from seer.errors import HostUnreachableError, SandboxLostError
from seer.providers.modal._errors import translated
from seer.providers.remote.controller._link import Link, Ran, Wire, chunks
from seer.providers.rented._rental import Rental

logger = logging.getLogger(__name__)

_CHUNK = 512 * 1024
"""Bytes per request of a command's input; the SDK takes at most two megabytes at once."""
_MOMENT = 3.0
_NOTHING_THERE = 3
"""The pump's exit code if nothing is listening."""


class ModalLink(Link):
    """Commands in one sandbox."""

    def __init__(self, sandbox: modal.Sandbox, rental: Rental) -> None:
        self.name = f"Modal sandbox {rental.id}"
        self._sandbox = sandbox
        self._rental = rental

    async def _exec(self, argv: Sequence[str]) -> Any:
        try:
            with translated():
                return await self._sandbox.exec.aio(*argv, text=False)
        except (HostUnreachableError, SandboxLostError) as error:
            # A sandbox that has ended looks like an unreachable one, and Modal may not report the
            # reason at once.
            ending = isinstance(error, SandboxLostError)
            if ending and not await self._rental.gone(_MOMENT):
                raise
            lost = await self._rental.lost()
            if lost is not None:
                raise lost from None
            raise

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
    ) -> Ran:
        """Run a program to its end; see `Link.run`."""
        process = await self._exec(argv)
        kept: list[bytes] = []
        with translated():
            feeding = asyncio.create_task(_feed(process, stdin))
            errors = asyncio.create_task(_read_all(process.stderr))
            try:
                async for data in process.stdout:
                    (on_stdout or kept.append)(data)
                code: int = await process.wait.aio()
                return Ran(exit_code=code, stdout=b"".join(kept), stderr=await errors)
            finally:
                feeding.cancel()
                errors.cancel()
                await asyncio.gather(feeding, errors, return_exceptions=True)

    async def dial(
        self, path: str, *, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Wire:
        """Open a byte stream to a Unix socket; see `Link.dial`."""
        process = await self._exec([*self.pump, path])
        wire = _ModalWire(process, on_data, on_end)
        try:
            with translated():
                await wire.opened
        except BaseException:
            wire.close()
            raise
        return wire

    async def close(self) -> None:
        """Do nothing: there is no lasting connection."""


class _ModalWire(Wire):
    """The input and output of a pump."""

    def __init__(
        self, process: Any, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._process = process
        self._on_data = on_data
        self._on_end = on_end
        self._unsent = bytearray()
        self._news = asyncio.Event()
        self._closed = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())
        self._writing = asyncio.create_task(self._write())

    def write(self, data: bytes) -> None:
        self._unsent += data
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()
        self._reading.cancel()

    async def _read(self) -> None:
        begun = False
        try:
            async for data in self._process.stdout:
                if begun:
                    self._on_data(data)
                    continue
                begun = True
                if not self.opened.done():
                    self.opened.set_result(None)
                if len(data) > 1:
                    self._on_data(data[1:])
        except Exception as error:
            logger.debug("a stream of a sandbox broke: %s", error)
            self._fail(error)
        if not begun:
            await self._explain()
        self._closed = True
        self._news.set()
        self._on_end()

    async def _explain(self) -> None:
        """Report why the pump ended before it was connected."""
        try:
            code: int = await self._process.wait.aio()
        except Exception as error:
            self._fail(error)
            return
        if code == _NOTHING_THERE:
            self._fail(FileNotFoundError("nothing is listening there"))
        self._fail(HostUnreachableError(f"a stream could not start: exit code {code}"))

    def _fail(self, error: BaseException) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)

    async def _write(self) -> None:
        stdin = self._process.stdin
        try:
            while not self._closed or self._unsent:
                await self._news.wait()
                self._news.clear()
                while self._unsent:
                    part = bytes(self._unsent[:_CHUNK])
                    del self._unsent[:_CHUNK]
                    stdin.write(part)
                    await stdin.drain.aio()
            # Closing its input is the only way to end a command.
            stdin.write_eof()
            await stdin.drain.aio()
        except Exception as error:
            logger.debug("a stream of a sandbox broke: %s", error)


async def _feed(process: Any, stdin: bytes | AsyncIterable[bytes]) -> None:
    async for part in chunks(stdin, _CHUNK):
        process.stdin.write(part)
        await process.stdin.drain.aio()
    process.stdin.write_eof()
    await process.stdin.drain.aio()


async def _read_all(stream: Any) -> bytes:
    return b"".join([data async for data in stream])
