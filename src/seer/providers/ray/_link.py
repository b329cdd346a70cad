"""A link to a node of a Ray cluster: programs and streams over TLS to the actor that holds it."""

import asyncio
import contextlib
import hmac
import json
import ssl
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from typing import Any, cast

from seer.errors import HostUnreachableError, ProviderError, SandboxLostError
from seer.providers.ray.actor import ERR, EXIT, HEAD_BYTES, IN, IN_END, OUT, frame, read_head
from seer.providers.remote.controller._link import Link, Ran, Wire, chunks

_CONNECT_PATIENCE = 15.0
_LIMIT = 1 << 20


class RayLink(Link):
    """The connection to the node of one actor."""

    def __init__(
        self, contact: Mapping[str, Any], *, name: str, lost: Callable[[], str | None]
    ) -> None:
        """Describe the connection.

        Args:
            contact: What the actor reported about itself through Ray.
            name: The node's name, for messages.
            lost: Returns why the actor is gone, if Ray has reported that.
        """
        self.name = name
        self._address: tuple[str, int] = (contact["address"][0], contact["address"][1])
        self._secret: str = contact["secret"]
        self._lost = lost
        self._open: set[asyncio.WriteTransport] = set()
        self._certificate = ssl.PEM_cert_to_DER_cert(contact["certificate"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Only this certificate, which was made for this actor, is accepted.
        context.check_hostname = False
        context.load_verify_locations(cadata=contact["certificate"])
        self._context = context

    async def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        for transport in list(self._open):
            _abort(transport)

    async def _ask(
        self, request: Mapping[str, object]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, authenticate, and send a request.

        Raises:
            HostUnreachableError: The actor does not answer.
            SandboxLostError: Ray reports that the actor is gone.
            FileNotFoundError: The program or socket does not exist.
        """
        try:
            async with asyncio.timeout(_CONNECT_PATIENCE):
                reader, writer = await asyncio.open_connection(
                    *self._address, ssl=self._context, server_hostname="", limit=_LIMIT
                )
        except (OSError, TimeoutError) as error:
            raise self._broken(error) from error
        self._open = {each for each in self._open if not each.is_closing()} | {writer.transport}
        try:
            shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if not hmac.compare_digest(shown, self._certificate):
                raise HostUnreachableError(f"{self.name}: another server answers at its address")
            writer.write(json.dumps({**request, "secret": self._secret}).encode() + b"\n")
            async with asyncio.timeout(_CONNECT_PATIENCE):
                line = await reader.readline()
            answer = json.loads(line) if line else None
        except (OSError, TimeoutError, ValueError) as error:
            _abort(writer.transport)
            raise self._broken(error) from error
        except BaseException:
            _abort(writer.transport)
            raise
        if answer is None:
            _abort(writer.transport)
            raise self._broken(ConnectionResetError("the connection broke"))
        if "missing" in answer:
            _abort(writer.transport)
            raise FileNotFoundError(f"{self.name}: {answer['missing']}")
        return reader, writer

    def _broken(self, error: BaseException) -> HostUnreachableError | SandboxLostError:
        reason = self._lost()
        if reason is not None:
            return SandboxLostError(f"{self.name}: the Ray actor that held it is gone: {reason}")
        words = str(error) or type(error).__name__
        return HostUnreachableError(
            f"{self.name} cannot be reached at {self._address[0]}:{self._address[1]}: {words}; "
            f"this machine must be able to reach every node at the node's own address"
        )

    # --- programs -----------------------------------------------------------------------------

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
    ) -> Ran:
        """Run a program on the node to its end. Cancelling ends the program."""
        try:
            reader, writer = await self._ask({"run": list(argv)})
        except FileNotFoundError as error:
            raise ProviderError(str(error)) from None
        feeding = asyncio.create_task(_feed(writer, stdin))
        try:
            return await _attend(reader, on_stdout)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise self._broken(error) from error
        finally:
            feeding.cancel()
            _abort(writer.transport)
            fed = (await asyncio.gather(feeding, return_exceptions=True))[0]
            if isinstance(fed, ProviderError):
                raise fed

    # --- streams ------------------------------------------------------------------------------

    async def dial(
        self, path: str, *, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> Wire:
        """Open a byte stream to a Unix socket on the node."""
        reader, writer = await self._ask({"dial": path})
        transport = writer.transport
        stream = _Stream(on_data, on_end)
        transport.set_protocol(stream)
        # Pass on data that arrived together with the answer.
        early = bytes(cast(Any, reader)._buffer)
        if early:
            on_data(early)
        if transport.is_closing() or reader.at_eof():
            on_end()
        return _TlsWire(writer)


def _abort(transport: asyncio.WriteTransport) -> None:
    """End a connection at once, if it has not ended.

    Python 3.11.2 drops the protocol of a TLS transport that is closed twice, and then cannot abort
    it. Such a connection is being shut down already.
    """
    with contextlib.suppress(AttributeError):
        transport.abort()


async def _attend(reader: asyncio.StreamReader, on_stdout: Callable[[bytes], None] | None) -> Ran:
    out, err = bytearray(), bytearray()
    while True:
        kind, length = read_head(await reader.readexactly(HEAD_BYTES))
        data = await reader.readexactly(length)
        if kind == EXIT:
            return Ran(exit_code=int(data), stdout=bytes(out), stderr=bytes(err))
        if kind == ERR:
            err += data
        elif kind == OUT:
            (on_stdout or out.extend)(data)


async def _feed(writer: asyncio.StreamWriter, stdin: bytes | AsyncIterable[bytes]) -> None:
    with contextlib.suppress(OSError):
        async for part in chunks(stdin):
            writer.write(frame(IN, part))
            await writer.drain()
        writer.write(frame(IN_END))


class _TlsWire(Wire):
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        # Keep the writer: it would close its transport when it is garbage-collected.
        self._writer = writer
        self._transport = writer.transport

    def write(self, data: bytes) -> None:
        """Send `data`, unless the connection is gone."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection once all data is sent."""
        self._transport.close()


class _Stream(asyncio.Protocol):
    def __init__(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_data = on_data
        self._on_end = on_end

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        self._on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the wire."""
        self._on_end()
