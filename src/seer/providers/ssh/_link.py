"""A host that is reached through one SSH connection, which is replaced when it breaks.

Host keys are always checked, and SSH agents are never forwarded.
"""

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterable, Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import asyncssh

from seer.errors import HostRefusedError, HostUnreachableError, ProviderError
from seer.providers.remote.controller._link import Link, Ran, Wire, chunks
from seer.providers.ssh._options import SshOptions

_KEEPALIVE = 15.0
_PATH_LIMIT = 100
_SESSIONS = 8
"""The most programs at the same time. By default, servers allow ten sessions per connection."""
_WINDOW = 4 * 1024 * 1024
_CONNECT_FAILED = 2
"""`SSH_OPEN_CONNECT_FAILED` of RFC 4254."""


class SshLink(Link):
    """An SSH connection to a host."""

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        self.name = f"{options.user}@{options.host}" if options.user else options.host
        self._connection: asyncssh.SSHClientConnection | None = None
        self._connecting = asyncio.Lock()
        self._sessions = asyncio.Semaphore(_SESSIONS)
        self._forwards: bool | None = None
        """Whether the server forwards streams to sockets; None while that is unknown."""

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await connection.wait_closed()

    async def connect(self) -> asyncssh.SSHClientConnection:
        """The connection, opened if there is none.

        Raises:
            HostUnreachableError: The host does not answer.
            HostRefusedError: Its host key is not the known one, or it accepts none of the user's
                keys.
        """
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                with self._translated():
                    self._connection = await asyncssh.connect(
                        self._options.host, **self._settings()
                    )
            return self._connection

    def _settings(self) -> dict[str, Any]:
        options = self._options
        settings: dict[str, Any] = {
            "agent_forwarding": False,
            "keepalive_interval": _KEEPALIVE,
            "keepalive_count_max": 3,
            "connect_timeout": options.connect_timeout,
            "login_timeout": options.connect_timeout,
            "x11_forwarding": False,
            "request_pty": False,
            "password_auth": False,
            "kbdint_auth": False,
            "compression_algs": None,
        }
        for name, value in (
            ("username", options.user),
            ("port", options.port),
            ("client_keys", options.identity and [str(Path(options.identity).expanduser())]),
            ("known_hosts", options.known_hosts and str(Path(options.known_hosts).expanduser())),
            ("config", options.config and [str(Path(options.config).expanduser())]),
        ):
            if value:
                settings[name] = value
        return settings

    @contextlib.contextmanager
    def _translated(self) -> Generator[None]:
        """Raise Seer's errors instead of those of asyncssh and the system."""
        try:
            yield
        except asyncssh.HostKeyNotVerifiable as error:
            raise HostRefusedError(
                f"{self.name}: the host key is not the known one ({error}). If the host is new to "
                f"you, log in once with `ssh {self.name}` and compare the fingerprint. "
                f"Otherwise someone may be intercepting the connection"
            ) from error
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
            raise HostRefusedError(
                f"{self.name}: a private key cannot be used ({error}); add it to your ssh-agent"
            ) from error
        except asyncssh.PermissionDenied as error:
            raise HostRefusedError(
                f"{self.name}: it accepts none of your keys ({error}); check the user name, and "
                f"that `ssh {self.name}` logs in without a password"
            ) from error
        except asyncssh.ConfigParseError as error:
            raise HostRefusedError(f"the SSH configuration cannot be read: {error}") from error
        except (asyncssh.Error, OSError, TimeoutError) as error:
            words = str(error) or type(error).__name__
            raise HostUnreachableError(
                f"{self.name} cannot be reached: {words}; check the host, the port and the network"
            ) from error

    # --- programs -----------------------------------------------------------------------------

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
    ) -> Ran:
        """Run a program on the host to its end."""
        async with self._sessions:
            connection = await self.connect()
            with self._translated():
                process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
                    shlex.join(argv), encoding=None, window=_WINDOW
                )
            try:
                return await self._attend(process, stdin, on_stdout)
            finally:
                process.close()

    async def _attend(
        self,
        process: "asyncssh.SSHClientProcess[bytes]",
        stdin: bytes | AsyncIterable[bytes],
        on_stdout: Callable[[bytes], None] | None,
    ) -> Ran:
        out, err = bytearray(), bytearray()

        async def collect(
            reader: "asyncssh.SSHReader[bytes]", take: Callable[[bytes], object]
        ) -> None:
            while data := await reader.read(256 * 1024):
                take(data)

        feeding = asyncio.create_task(_feed(process, stdin))
        try:
            with self._translated():
                await asyncio.gather(
                    collect(process.stdout, on_stdout or out.extend),
                    collect(process.stderr, err.extend),
                )
                await process.wait_closed()
        finally:
            feeding.cancel()
            fed = (await asyncio.gather(feeding, return_exceptions=True))[0]
        if isinstance(fed, ProviderError):
            raise fed
        if process.exit_status is None and process.exit_signal is None:
            raise HostUnreachableError(f"{self.name}: the connection broke while a program ran")
        code = process.exit_status if process.exit_status is not None else -1
        return Ran(exit_code=code, stdout=bytes(out), stderr=bytes(err))

    # --- streams ------------------------------------------------------------------------------

    async def dial(
        self, path: str, *, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Wire:
        """Open a byte stream to a Unix socket on the host."""
        connection = await self.connect()
        if self._forwards is not False and len(path) <= _PATH_LIMIT:
            try:
                channel, _ = await connection.create_unix_connection(
                    lambda: _Stream(on_data, on_end), path, window=_WINDOW
                )
                self._forwards = True
                return _ChannelWire(channel)
            except asyncssh.ChannelOpenError as error:
                if connection.is_closed():
                    raise HostUnreachableError(f"{self.name}: {error}") from error
                if error.code == _CONNECT_FAILED and self._forwards:
                    raise FileNotFoundError(
                        f"{self.name}: nothing is listening on {path!r}"
                    ) from None
                # Servers do not report that forwarding is forbidden, so try the pump.
            except (asyncssh.Error, OSError) as error:
                raise HostUnreachableError(f"{self.name}: {error}") from error
        wire = await self._dial_with_pump(connection, path, on_data, on_end)
        if len(path) <= _PATH_LIMIT:
            self._forwards = False
        return wire

    async def _dial_with_pump(
        self,
        connection: asyncssh.SSHClientConnection,
        path: str,
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> Wire:
        pumped = _Pumped(on_data, on_end)
        with self._translated():
            made = cast(
                "tuple[object, object]",
                await connection.create_session(  # pyright: ignore[reportUnknownMemberType]
                    lambda: pumped, shlex.join([*self.pump, path]), encoding=None, window=_WINDOW
                ),
            )
        channel = cast("_Channel", made[0])
        try:
            begun = await pumped.begun
        except BaseException:
            channel.abort()
            raise
        if not begun:
            channel.abort()
            if connection.is_closed():
                raise HostUnreachableError(f"{self.name}: the connection broke")
            raise FileNotFoundError(f"{self.name}: nothing is listening on {path!r}")
        return _ChannelWire(channel)


async def _feed(
    process: "asyncssh.SSHClientProcess[bytes]", stdin: bytes | AsyncIterable[bytes]
) -> None:
    # The program may end before it has read its input. Its output says why.
    with contextlib.suppress(OSError, asyncssh.Error):
        async for part in chunks(stdin):
            process.stdin.write(part)
            await process.stdin.drain()
        process.stdin.write_eof()


class _Channel(Protocol):
    """The methods of asyncssh's channels that this module uses."""

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...


class _ChannelWire(Wire):
    def __init__(self, channel: "_Channel") -> None:
        self._channel = channel

    def write(self, data: bytes) -> None:
        """Send `data`, unless the channel is gone."""
        with contextlib.suppress(OSError):
            self._channel.write(data)

    def close(self) -> None:
        """Close the channel."""
        self._channel.abort()


class _Stream(asyncssh.SSHUNIXSession[bytes]):
    """A forwarded stream."""

    def __init__(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_data = on_data
        self._on_end = on_end

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Pass it on."""
        self._on_data(data)

    def eof_received(self) -> bool:
        """Report the end of the wire."""
        self._on_end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the stream has ended."""
        self._on_end()


class _Pumped(asyncssh.SSHClientSession[bytes]):
    """A stream through the pump. Its first byte signals that the pump is connected."""

    def __init__(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_data = on_data
        self._on_end = on_end
        self.begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Pass it on."""
        if datatype is not None:
            return
        if not self.begun.done():
            self.begun.set_result(True)
            data = data[1:]
        if data:
            self._on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the wire."""
        if not self.begun.done():
            self.begun.set_result(False)
        self._on_end()
