"""A command in a machine, from the controller's side of its connection to the steward."""

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from seer.errors import SandboxLostError, SandboxStateError
from seer.providers._spec import Stream, TerminalSize
from seer.providers.agent import wire
from seer.providers.client._parts import Process
from seer.providers.client._wire_io import Connection, broken, decoded

_HELD = 1024 * 1024
"""Output that is kept for a reader who is not reading; then the command waits."""
_GRACE = 10.0
"""Seconds in which a steward must obey a kill before its server is killed instead."""

Abort = Callable[[int], Awaitable[None]]
"""Kills the process of the machine that serves a connection."""
CheckLimits = Callable[[], Awaitable[None]]
"""Looks whether the machine is past a limit, and raises why it was ended if so."""


class StewardProcess(Process):
    """A command that a steward runs."""

    def __init__(
        self,
        connection: Connection,
        *,
        server: int,
        has_stdin: bool,
        abort: Abort,
        check_limits: CheckLimits,
    ) -> None:
        self._connection = connection
        self._server = server
        self._has_stdin = has_stdin
        self._abort = abort
        self._check_limits = check_limits
        self._held: deque[tuple[Stream, bytes]] = deque()
        self._held_bytes = 0
        self._credit = wire.CHUNK
        self._exit: int | None = None
        self._failure: SandboxLostError | None = None
        self._killed = False
        self._releasing = self._released = False
        self._changed = asyncio.Condition()
        self._pump = asyncio.create_task(self._run())

    # --- what arrives -------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._exit is None:
                kind, payload = await self._connection.receive()
                async with self._changed:
                    self._take(kind, payload)
                    self._changed.notify_all()
                    await self._changed.wait_for(self._has_room)
        except SandboxLostError as error:
            self._failure = error
        finally:
            self._connection.close()
            async with self._changed:
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return self._killed or self._releasing or self._held_bytes < _HELD

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind in (wire.STDOUT, wire.STDERR):
            self._held.append(("stdout" if kind == wire.STDOUT else "stderr", payload))
            self._held_bytes += len(payload)
            return
        if kind == wire.RELEASE:
            self._released = True
            return
        fields = decoded(payload)
        try:
            if kind == wire.CREDIT:
                self._credit += max(wire.get_int(fields, "bytes"), 0)
            elif kind == wire.EXIT:
                self._exit = wire.get_int(fields, "code")
            else:
                raise broken(f"a frame of kind {kind!r} from a running command")
        except wire.WireError as error:
            raise broken(str(error)) from None

    @property
    def _over(self) -> bool:
        return self._exit is not None or self._failure is not None

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """What it prints, as it prints it."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._held) or self._over)
                if not self._held:
                    self._raise_failure()
                    return
                stream, data = self._held.popleft()
                self._held_bytes -= len(data)
                self._changed.notify_all()
            yield stream, data

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._over)
        if self._exit is None:
            self._raise_failure()
            raise broken("no exit code")
        if self._exit == -signal.SIGKILL and not self._killed:
            # Not by us: the machine may have used up its memory, and is then about to end.
            await self._check_limits()
        return self._exit

    # --- what is sent -------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Feed its standard input."""
        if not self._has_stdin:
            raise SandboxStateError("this command was started without standard input (stdin=True)")
        view = memoryview(data)
        while view:
            async with self._changed:
                await self._changed.wait_for(lambda: self._credit > 0 or self._over)
                self._refuse_if_over()
                part = view[: min(self._credit, wire.CHUNK)]
                self._credit -= len(part)
            await self._connection.send(wire.STDIN, bytes(part))
            view = view[len(part) :]

    def _refuse_if_over(self) -> None:
        self._raise_failure()
        if self._exit is not None:
            raise SandboxStateError(f"the command has ended, with {self._exit}")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            # A fresh one each time: one that is raised twice would grow two tracebacks.
            raise type(self._failure)(str(self._failure))

    async def close_stdin(self) -> None:
        """End its standard input."""
        if self._has_stdin and not self._over:
            self._has_stdin = False
            await self._tell(wire.STDIN_END)

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        if not 1 <= number <= 64:
            raise ValueError(f"signal {number!r}: give a number from 1 to 64")
        await self._tell(wire.SIGNAL, wire.encode({"number": number}))

    async def resize(self, size: TerminalSize) -> None:
        """Tell a command in a terminal the terminal's new size."""
        fields = {"size": [str(size.rows), str(size.columns)]}
        await self._tell(wire.RESIZE, wire.encode(fields))

    async def _tell(self, kind: bytes, payload: bytes = b"") -> None:
        if self._over:
            return
        try:
            await self._connection.send(kind, payload)
        except SandboxLostError:
            # It may have ended in this very moment; then its exit is already on the way.
            await self._ends_within(_GRACE)

    async def kill(self) -> None:
        """Kill it and everything it started."""
        async with self._changed:
            self._killed = True
            self._changed.notify_all()
        await self._tell(wire.KILL)
        if await self._ends_within(_GRACE):
            return
        # Its server in the machine was stopped, or starves: kill that, and all orphans with it.
        aborting = asyncio.ensure_future(self._abort(self._server))
        done, _ = await asyncio.wait({aborting}, timeout=_GRACE)
        if done:
            aborting.result()
        aborting.cancel()
        if not done or not await self._ends_within(_GRACE):
            await self.close()
            raise SandboxLostError(
                "the sandbox does not obey: a command could not be killed; terminate the sandbox"
            )
        if self._exit is None:
            # Its server could not tell any more; the steward has seen to the rest.
            self._exit, self._failure = -signal.SIGKILL, None

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._over)
        except TimeoutError:
            return False
        return True

    async def release(self) -> None:
        """Let it live on without this connection."""
        async with self._changed:
            self._refuse_if_over()
            # Its answer stands behind whatever it prints, and nobody need be reading that.
            self._releasing = True
            self._changed.notify_all()
        await self._tell(wire.RELEASE)
        async with self._changed:
            await self._changed.wait_for(lambda: self._released or self._over)
            self._refuse_if_over()
        await self.close()

    async def close(self) -> None:
        """Let go of it: if it still runs, it is killed with everything it started."""
        self._connection.close()
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        if not self._over:
            self._failure = SandboxLostError("the command was closed before it had ended")
        async with self._changed:
            self._changed.notify_all()
