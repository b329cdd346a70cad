"""The only network connection of a vendor's jail: an HTTP proxy to the vendor's endpoint.

Unlike the filtering proxy of sandboxes, it allows exactly the endpoints that the user chose. These
can be on loopback or in a private network, such as the user's own model server.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from seer._unix_sockets import listen, serve

logger = logging.getLogger(__name__)

_HEAD = 64 * 1024
_PORTS = {"http": 80, "https": 443}
_REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def endpoint_of(url: str) -> tuple[str, int]:
    """Host and port of a URL.

    Raises:
        ValueError: It is not an http or https URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is not an http or https URL")
    return parts.hostname.lower(), parts.port or _PORTS[parts.scheme]


class EndpointProxy:
    """Serves one jail on a Unix socket."""

    def __init__(self, endpoints: Sequence[str], upstream: str | None = None) -> None:
        self._allowed = {endpoint_of(url) for url in endpoints}
        self._upstream = endpoint_of(upstream) if upstream else None
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self.refused: list[str] = []
        """The other addresses that the process tried to reach, up to a hundred."""

    async def start(self, path: Path) -> None:
        """Listen at `path` for every user; the permissions of its folder limit the access."""
        listener = listen(path, 100, mode=0o666)
        self._server = await serve(self._handle, listener, limit=_HEAD)

    async def close(self) -> None:
        """Stop, and close open connections."""
        if self._server is not None:
            self._server.close()
        for line in self._lines:
            line.cancel()
        if self._lines:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(self._lines, timeout=5)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as e:
            logger.debug("a connection of the agent's process ended: %s", e)
        finally:
            self._lines.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, rest = head.partition(b"\r\n")
        method, target, version = line.decode("latin-1").split(" ")
        where = endpoint_of(f"https://{target}" if method == "CONNECT" else target)
        if where not in self._allowed:
            if len(self.refused) < 100:
                self.refused.append(f"{where[0]}:{where[1]}")
            logger.warning("refused the agent's process a connection to %r, port %d", *where)
            writer.write(_REFUSAL)
            await writer.drain()
            return
        outer = await self._open(where, tunnel=method == "CONNECT")
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                outer[1].write(self._request(method, target, version=version, rest=rest))
            await _join((reader, writer), outer)
        finally:
            outer[1].close()

    async def _open(self, where: tuple[str, int], *, tunnel: bool) -> Streams:
        if self._upstream is None:
            return await asyncio.open_connection(*where)
        reader, writer = await asyncio.open_connection(*self._upstream)
        if tunnel:
            name = f"{where[0]}:{where[1]}"
            writer.write(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode("latin-1"))
            answer = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in answer.partition(b"\r\n")[0]:
                writer.close()
                raise ConnectionRefusedError("the proxy in HTTPS_PROXY refused the connection")
        return reader, writer

    def _request(self, method: str, target: str, *, version: str, rest: bytes) -> bytes:
        """The request in the endpoint's form, with `Connection: close`, so that no second request
        follows."""
        if self._upstream is None:
            parts = urlsplit(target)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = [
            line
            for line in rest.split(b"\r\n")
            if line and not line.lower().startswith((b"connection:", b"proxy-"))
        ]
        head = f"{method} {target} {version}".encode("latin-1")
        return b"\r\n".join([head, *headers, b"Connection: close", b"", b""])


async def _join(inner: Streams, outer: Streams) -> None:
    """Forward bytes both ways until the endpoint has sent everything or the process is gone."""
    sending = asyncio.create_task(_pump(inner[0], outer[1]))
    try:
        await _pump(outer[0], inner[1])
    finally:
        sending.cancel()
        await asyncio.wait([sending])


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
