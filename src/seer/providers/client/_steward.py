"""The controller's client of a steward: commands, files and sockets of one machine.

Each operation has a connection of its own. How to open one differs between providers, so the client
gets a function for it. The machine's lifetime is not its business; see `_lease`.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from seer.errors import RemoteFileError, SandboxLostError, UserUnsupportedError
from seer.providers._spec import FileKind, FileStatus, TerminalSize
from seer.providers.agent import wire
from seer.providers.client._channel import StreamChannel
from seer.providers.client._parts import Channel, Listener, Process
from seer.providers.client._process import CheckLimits, StewardProcess
from seer.providers.client._wire_io import Connection, Lost, broken, remote_error

READ_LIMIT = 4 * 1024**3
"""A file larger than this is not read whole into memory; ask for parts of it."""

Dial = Callable[[], Awaitable[Connection]]
"""Opens a connection to a steward; raises `SandboxLostError` when the machine is gone."""

_UNBIND_PATIENCE = 5.0
_KINDS: frozenset[FileKind] = frozenset({"file", "folder", "link", "socket", "other"})


class StewardClient:
    """Uses a machine through its steward. The methods are those of `Machine`."""

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
            lost: Finds out why a connection ended too early.
            check_limits: Called after a command was killed.
            users: Whether commands can be run as another user than the agent's.
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
        """Start a command without a shell, in a session of its own."""
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
                    f"user={user!r}: this machine has one user only; provider='local' started by "
                    "root gives it more with provider_options={'users': True}"
                )
            fields["user"] = user
        if pty is not None:
            fields["pty"] = [str(pty.rows), str(pty.columns)]
        for text in (*argv, *(env or {}), *(env or {}).values(), cwd or "", user or ""):
            if "\0" in text:
                raise ValueError(f"{text!r}: programs cannot be given NUL characters")
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
            return  # it has ended by itself

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
                    raise broken("more of a file than it was asked for")
                parts.append(payload)

    async def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, append: bool = False
    ) -> None:
        """Write a file atomically (or append to it); parent folders are made."""
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
        """Have the steward listen on `path` for as long as the channel is open."""
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
        # The steward removes the socket when it reads the end, and hangs up when that is done.
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
