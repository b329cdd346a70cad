"""Tunnels: a TLS port of this host for each port that a sandbox opened."""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence

from modal_proto import api_pb2

from tests.support.modal_cloud._certificate import server_context


class Tunnels:
    """The tunnels of one sandbox."""

    def __init__(self) -> None:
        self._servers: dict[int, asyncio.Server] = {}

    async def open(self, ports: Sequence[int]) -> None:
        """Listen for each port; sandboxes with open ports share this host's network."""
        context: ssl.SSLContext | None = server_context() if ports else None
        for port in ports:
            self._servers[port] = await asyncio.start_server(
                lambda reader, writer, port=port: _forward(reader, writer, port),
                "127.0.0.1",
                0,
                ssl=context,
            )

    def data(self) -> list[api_pb2.TunnelData]:
        """As Modal tells them."""
        return [
            api_pb2.TunnelData(
                host="localhost", port=server.sockets[0].getsockname()[1], container_port=port
            )
            for port, server in self._servers.items()
        ]

    async def close(self) -> None:
        """Stop listening."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    try:
        inner = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pump(reader, inner[1]), _pump(inner[0], writer))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
