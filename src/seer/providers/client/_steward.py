"""The controller's client for a steward: commands, files and sockets of one machine.

Each operation has its own connection. Providers open connections in different ways, so the client
gets a function for it. `_lease` handles the machine's lifetime.
"""

import asyncio
import contextlib
import errno
import os
import signal
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from seer.errors import RemoteFileError, SandboxLostError, SandboxStateError, UserUnsupportedError
from seer.providers._spec import FileKind, FileStatus, Stream, TerminalSize
from seer.providers.agent import wire
from seer.providers.client._channel import StreamChannel
from seer.providers.client._connection import Connection, Lost, broken, decoded, remote_error
from seer.providers.client._interfaces import Channel, Listener, Process

READ_LIMIT = 4 * 1024**3
"""The largest file that is read whole into memory. Larger files must be read in parts."""

Dial = Callable[[], Awaitable[Connection]]
"""Opens a connection to a steward; raises `SandboxLostError` if the machine is gone."""

Abort = Callable[[int], Awaitable[None]]
"""Kills the process in the machine that serves a connection."""
CheckLimits = Callable[[], Awaitable[None]]
"""Checks the machine's limits, and raises the reason if exceeding one ended the machine."""
_UNBIND_PATIENCE = 5.0
_KINDS: frozenset[FileKind] = frozenset({"file", "folder", "link", "socket", "other"})


class StewardClient:
    """Uses a machine through its steward, with the methods of `Machine`."""

    def __init__(
        self,
        dial: Dial,
        *,
        lost: Lost,
        check_limits: CheckLimits,
        users: bool = False,
    ) -> None:
        """Use the steward that `dial` connects to.

        Args:
            dial: Opens a connection to the steward.
            lost: Returns the reason why a connection ended too early.
            check_limits: Called after a command was killed.
            users: Whether commands can run as a user other than the agent's.
        """
        self._dial = dial
        self._lost = lost
        self._check_limits = check_limits
        self._users = users

    @asynccontextmanager
    async def _operation(
        self, op: str, fields: "dict[str, wire.Encodable]"
    ) -> AsyncGenerator[Connection]:
        connection = await self._dial()
        try:
            await connection.request(op, fields)
            yield connection
        finally:
            connection.close()

    # --- commands -----------------------------------------------------------------------------

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
        """Start a command without a shell, in its own session."""
        if isinstance(argv, str) or not argv:
            raise ValueError(f"argv={argv!r}: give the program and its arguments as a list")
        fields: dict[str, wire.Encodable] = {
            "argv": list(argv),
            "env": dict(env or {}),
            "stdin": int(stdin),
        }
        if cwd is not None:
            fields["cwd"] = cwd
        if user is not None:
            if not self._users:
                raise UserUnsupportedError(
                    f"user={user!r}: this machine has only one user; provider='local' started by "
                    "root gives it more with provider_options={'users': True}"
                )
            fields["user"] = user
        if pty is not None:
            fields["pty"] = [str(pty.rows), str(pty.columns)]
        for text in (*argv, *(env or {}), *(env or {}).values(), cwd or "", user or ""):
            if "\0" in text:
                raise ValueError(
                    f"{text!r}: arguments, variables and paths cannot contain NUL characters"
                )
        if len(wire.encode(fields)) > wire.FRAME_LIMIT - 1024:
            raise RemoteFileError(errno.E2BIG, os.strerror(errno.E2BIG), argv[0])
        connection = await self._dial()
        try:
            await connection.request("exec", fields)
            answer = await connection.expect_ok()
            server = wire.get_int(answer, "server")
        except wire.WireError as error:
            connection.close()
            raise broken(str(error)) from None
        except BaseException:
            connection.close()
            raise
        return StewardProcess(
            connection,
            server=server,
            has_stdin=stdin or pty is not None,
            abort=self._abort,
            check_limits=self._check_limits,
        )

    async def _abort(self, server: int) -> None:
        try:
            async with self._operation("abort", {"server": server}) as connection:
                await connection.expect_ok()
        except RemoteFileError:
            return  # it has ended already

    # --- files --------------------------------------------------------------------------------

    async def read_file(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file; relative paths start at the layout's `workdir`."""
        limit = READ_LIMIT if length is None else length
        fields: dict[str, wire.Encodable] = {
            "path": path,
            "offset": offset,
            "length": -1 if length is None else length,
            "limit": READ_LIMIT,
        }
        parts: list[bytes] = []
        size = 0
        async with self._operation("read", fields) as connection:
            await connection.expect_ok()
            while True:
                kind, payload = await connection.receive()
                if kind == wire.END:
                    return b"".join(parts)
                if kind == wire.ERROR:
                    raise remote_error(payload)
                size += len(payload)
                if kind != wire.DATA or size > limit:
                    raise broken("more file data than requested")
                parts.append(payload)

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False
    ) -> None:
        """Write a file atomically (or append to it), and create its parent folders."""
        fields: dict[str, wire.Encodable] = {"path": path, "mode": mode, "append": int(append)}
        async with self._operation("write", fields) as connection:
            answer = asyncio.create_task(connection.expect_ok(patience=None))
            try:
                view = memoryview(data)
                for start in range(0, len(view), wire.CHUNK):
                    if answer.done():
                        break
                    await connection.send(wire.DATA, bytes(view[start : start + wire.CHUNK]))
                if not answer.done():
                    await connection.send(wire.END)
                await answer
            finally:
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)

    async def stat(self, path: str, *, follow: bool = True) -> FileStatus:
        """Describe a file."""
        async with self._operation("stat", {"path": path, "follow": int(follow)}) as connection:
            return _file_status(await connection.expect_ok())

    async def list_dir(self, path: str) -> list[FileStatus]:
        """Describe everything in a folder."""
        found: list[FileStatus] = []
        async with self._operation("list", {"path": path}) as connection:
            await connection.expect_ok()
            while True:
                kind, payload = await connection.receive()
                if kind == wire.END:
                    return found
                if kind == wire.ERROR:
                    raise remote_error(payload)
                try:
                    entries = wire.decode(payload)
                except wire.WireError as error:
                    raise broken(str(error)) from None
                for entry in entries if isinstance(entries, list) else ():
                    if isinstance(entry, dict):
                        found.append(_file_status(entry))

    async def make_dir(self, path: str, *, mode: int = 0o755) -> None:
        """Make a folder and its parents."""
        async with self._operation("mkdir", {"path": path, "mode": mode}) as connection:
            await connection.expect_ok()

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or a folder."""
        fields: dict[str, wire.Encodable] = {"path": path, "recursive": int(recursive)}
        async with self._operation("remove", fields) as connection:
            await connection.expect_ok()

    # --- sockets ------------------------------------------------------------------------------

    async def connect(self, address: str | int) -> Channel:
        """Open a connection to a Unix socket (path) or a loopback TCP port in the machine."""
        if isinstance(address, int):
            if not 1 <= address <= 65535:
                raise ValueError(f"port {address!r}: give a number from 1 to 65535")
            return await self._open_channel("connect", {"port": address})
        return await self._open_channel("connect", {"path": address})

    def listen(self, path: str) -> "StewardListener":
        """Accept connections that programs in the machine make to the Unix socket `path`."""
        return StewardListener(self, path)

    async def _open_channel(
        self, op: Literal["connect", "accept", "listen"], fields: "dict[str, wire.Encodable]"
    ) -> StreamChannel:
        connection = await self._dial()
        try:
            await connection.request(op, fields)
            await connection.expect_ok()
        except BaseException:
            connection.close()
            raise
        return StreamChannel(connection.reader, connection.writer, self._lost)

    async def accept(self, path: str) -> Channel:
        """Wait for one connection to a socket that a `StewardListener` listens on."""
        return await self._open_channel("accept", {"path": path})

    async def bind(self, path: str) -> StreamChannel:
        """Have the steward listen on `path` while the channel is open."""
        return await self._open_channel("listen", {"path": path})


class StewardListener(Listener):
    """Accepts through the steward, for machines whose sockets this host cannot see."""

    def __init__(self, steward: StewardClient, path: str) -> None:
        self._steward = steward
        self._path = path
        self._bound: StreamChannel | None = None
        self._closed = False

    async def __aenter__(self) -> "StewardListener":
        """Itself, bound."""
        if self._bound is None and not self._closed:
            self._bound = await self._steward.bind(self._path)
        return self

    async def __anext__(self) -> Channel:
        """The next connection."""
        await self.__aenter__()
        if self._closed:
            raise StopAsyncIteration
        return await self._steward.accept(self._path)

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        self._closed = True
        if self._bound is None:
            return
        # The steward removes the socket when it reads the end, and then closes the connection.
        await self._bound.end_writing()
        with contextlib.suppress(TimeoutError, SandboxLostError):
            async with asyncio.timeout(_UNBIND_PATIENCE):
                await self._bound.read()
        await self._bound.close()


def _file_status(fields: "wire.Message") -> FileStatus:
    try:
        kind = wire.get_text(fields, "kind")
        if kind not in _KINDS:
            raise broken(f"a file of kind {kind!r}")
        return FileStatus(
            name=wire.get_text(fields, "name"),
            kind=kind,
            size=wire.get_int(fields, "size"),
            mode=wire.get_int(fields, "mode"),
            mtime=wire.get_int(fields, "mtime_ns") / 1e9,
        )
    except wire.WireError as error:
        raise broken(str(error)) from None


_HELD = 1024 * 1024
"""Bytes of output to buffer for the reader. The command waits while the buffer is full."""
_GRACE = 10.0
"""Seconds for a steward to carry out a kill. After that, the process that serves the command is
killed."""


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
        """The command's output as it is printed."""
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
        """Wait for its end and return its exit code."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._over)
        if self._exit is None:
            self._raise_failure()
            raise broken("no exit code")
        if self._exit == -signal.SIGKILL and not self._killed:
            # Another process killed the command. If the machine ran out of memory, it is about to
            # end.
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
            raise SandboxStateError(f"the command has ended with exit code {self._exit}")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            # Create a new error each time: an error that is raised twice collects two tracebacks.
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
            # The command may have just ended. Its exit code is then in transit.
            await self._ends_within(_GRACE)

    async def kill(self) -> None:
        """Kill it and everything it started."""
        async with self._changed:
            self._killed = True
            self._changed.notify_all()
        await self._tell(wire.KILL)
        if await self._ends_within(_GRACE):
            return
        # The process that serves it in the machine was stopped or gets no CPU: kill it and all
        # orphans.
        aborting = asyncio.ensure_future(self._abort(self._server))
        done, _ = await asyncio.wait({aborting}, timeout=_GRACE)
        if done:
            aborting.result()
        aborting.cancel()
        if not done or not await self._ends_within(_GRACE):
            await self.close()
            raise SandboxLostError(
                "a command in the sandbox could not be killed; terminate the sandbox"
            )
        if self._exit is None:
            # The killed process could not report the exit code. The steward has killed the rest.
            self._exit, self._failure = -signal.SIGKILL, None

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._over)
        except TimeoutError:
            return False
        return True

    async def release(self) -> None:
        """Let the command continue without this connection."""
        async with self._changed:
            self._refuse_if_over()
            # The answer comes after all output, which may have no reader.
            self._releasing = True
            self._changed.notify_all()
        await self._tell(wire.RELEASE)
        async with self._changed:
            await self._changed.wait_for(lambda: self._released or self._over)
            self._refuse_if_over()
        await self.close()

    async def close(self) -> None:
        """Close it. If it still runs, it is killed with everything it started."""
        self._connection.close()
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        if not self._over:
            self._failure = SandboxLostError("the command was closed before it ended")
        async with self._changed:
            self._changed.notify_all()
