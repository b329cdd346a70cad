"""An interactive program on its own pseudo-terminal in a session's machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from seer._sync import from_any_loop, on_loop, run_sync
from seer.errors import SandboxLostError, SandboxStateError
from seer.providers import Machine, Process, TerminalSize

_KEPT = 1024 * 1024
"""Bytes of unread output that are kept; older ones are dropped."""


class PseudoTerminal:
    """A running interactive program: write keys, read its output."""

    def __init__(self, terminal_id: str, process: Process, on_close: Callable[[], object]) -> None:
        self.terminal_id = terminal_id
        self._process = process
        self._on_close = on_close
        self._held = bytearray()
        self._dropped = 0
        self._news = asyncio.Event()
        self._exit_code: int | None = None
        self._reader = asyncio.create_task(self._read_process())

    @classmethod
    async def start(
        cls,
        terminal_id: str,
        machine: Machine,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        size: tuple[int, int],
        on_close: Callable[[], object],
    ) -> PseudoTerminal:
        """Start a program.

        Raises:
            SandboxLostError: The machine is gone.
        """
        process = await machine.spawn(argv, env=env, pty=_size(*size))
        return cls(terminal_id, process, on_close)

    def write(self, text: str) -> None:
        """Type `text`; Enter is `\\r`, Ctrl-C is `\\x03`.

        Raises:
            SandboxStateError: The program has ended.
        """
        run_sync(self.awrite(text))

    @from_any_loop
    async def awrite(self, text: str) -> None:
        """Like `write`."""
        if self._exit_code is not None:
            raise SandboxStateError(f"the program of terminal {self.terminal_id!r} has ended")
        await self._process.write(text.encode(errors="surrogateescape"))

    def read(self, *, wait: float = 1.0, quiet: float = 0.2) -> str:
        """The program's output since the last read.

        Args:
            wait: Seconds to wait for the first output.
            quiet: Seconds without further output after which this returns.
        """
        return run_sync(self.aread(wait=wait, quiet=quiet))

    @from_any_loop
    async def aread(self, *, wait: float = 1.0, quiet: float = 0.2) -> str:
        """Like `read`."""
        pause = wait
        while self._exit_code is None:
            self._news.clear()
            had = len(self._held) + self._dropped
            if had and pause == wait:
                pause = quiet
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                break
            pause = quiet
        data, self._held = bytes(self._held), bytearray()
        dropped, self._dropped = self._dropped, 0
        mark = (
            f"[... {dropped:,} bytes were not read in time and are lost ...]\n" if dropped else ""
        )
        return mark + data.decode(errors="replace")

    def resize(self, rows: int, columns: int) -> None:
        """Change the terminal's size."""
        run_sync(self._process.resize(_size(rows, columns)))

    async def aresize(self, rows: int, columns: int) -> None:
        """Like `resize`."""
        await on_loop(self._process.resize(_size(rows, columns)))

    @property
    def exit_code(self) -> int | None:
        """The program's exit code; None while it runs."""
        return self._exit_code

    def close(self) -> None:
        """Hang up the terminal and kill the program. Closing twice is harmless."""
        run_sync(self.aclose())

    @from_any_loop
    async def aclose(self) -> None:
        """Like `close`."""
        self._on_close()
        with contextlib.suppress(SandboxLostError):
            await self._process.kill()
            await self._process.close()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        if self._exit_code is None:
            self._exit_code = -9

    async def _read_process(self) -> None:
        code = -9
        with contextlib.suppress(SandboxLostError):
            async for _, data in self._process.output():
                self._held += data
                if len(self._held) > _KEPT:
                    self._dropped += len(self._held) - _KEPT
                    del self._held[:-_KEPT]
                self._news.set()
                await asyncio.sleep(0)
            code = await self._process.wait()
        self._exit_code = code
        self._news.set()


def _size(rows: int, columns: int) -> TerminalSize:
    if not (1 <= rows <= 1000 and 1 <= columns <= 1000):
        raise ValueError(f"rows={rows!r}, columns={columns!r}: each must be 1 to 1000")
    return TerminalSize(rows, columns)
