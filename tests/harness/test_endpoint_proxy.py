"""The only connection out of a vendor's jail leads to the vendor's endpoint."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from seer.harness.confinement._endpoint_proxy import EndpointProxy, endpoint_of


@asynccontextmanager
async def server(answer: bytes) -> AsyncGenerator[tuple[int, list[bytes]], None]:
    """A server on loopback that keeps the requests it receives and gives one answer."""
    got: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read(65536))
        writer.write(answer)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1], got
    finally:
        listening.close()


async def ask(path: Path, data: bytes) -> bytes:
    with anyio.fail_after(30):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(data)
        await writer.drain()
        answer = await reader.read(-1)
        writer.close()
        return answer


@asynccontextmanager
async def proxy(folder: Path, *endpoints: str) -> AsyncGenerator[EndpointProxy, None]:
    made = EndpointProxy(endpoints)
    await made.start(folder / "proxy")
    try:
        yield made
    finally:
        await made.close()


async def test_a_request_reaches_the_endpoint_without_the_proxys_marks(tmp_path: Path) -> None:
    async with server(b"HTTP/1.1 200 OK\r\n\r\nhello") as (port, got):
        url = f"http://127.0.0.1:{port}"
        async with proxy(tmp_path, url):
            request = f"POST {url}/v1/x?a=1 HTTP/1.1\r\nHost: x\r\nProxy-Auth: y\r\n\r\nbody"
            answer = await ask(tmp_path / "proxy", request.encode())
    assert answer.endswith(b"hello")
    head, _, body = got[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/x?a=1 HTTP/1.1\r\nHost: x")
    assert b"Proxy-Auth" not in head
    assert b"Connection: close" in head
    assert body in {b"", b"body"}


async def test_a_tunnel_passes_bytes_both_ways(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        port, got = await stack.enter_async_context(server(b"over and out"))
        await stack.enter_async_context(proxy(tmp_path, f"https://127.0.0.1:{port}"))
        request = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nping"
        answer = await ask(tmp_path / "proxy", request.encode())
    assert answer.endswith(b"over and out")
    assert got == [b"ping"]


@pytest.mark.parametrize(
    "request_line",
    [
        "CONNECT example.org:443",
        "CONNECT 127.0.0.1:{other}",
        "CONNECT localhost:{port}",
        "GET http://example.org/",
        "GET http://127.0.0.1:{other}/",
        "GET http://127.0.0.1:{port}@example.org/",
    ],
)
async def test_everything_else_is_refused(tmp_path: Path, request_line: str) -> None:
    async with AsyncExitStack() as stack:
        port, got = await stack.enter_async_context(server(b"reached"))
        other, also_got = await stack.enter_async_context(server(b"reached"))
        url = f"http://127.0.0.1:{port}"
        made = await stack.enter_async_context(proxy(tmp_path, url))
        line = request_line.format(port=port, other=other)
        answer = await ask(tmp_path / "proxy", f"{line} HTTP/1.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403")
        assert len(made.refused) == 1
    assert got == also_got == []


@pytest.mark.parametrize("junk", [b"\r\n\r\n", b"GET\r\n\r\n", b"a b c d\r\n\r\n", b"x" * 200_000])
async def test_junk_ends_the_connection_and_the_proxy_goes_on(tmp_path: Path, junk: bytes) -> None:
    async with server(b"HTTP/1.1 200 OK\r\n\r\nok") as (port, _):
        url = f"http://127.0.0.1:{port}"
        async with proxy(tmp_path, url):
            # It may close before a long junk request is written completely.
            with suppress(BrokenPipeError, ConnectionResetError):
                assert await ask(tmp_path / "proxy", junk) == b""
            answer = await ask(tmp_path / "proxy", f"GET {url}/ HTTP/1.1\r\n\r\n".encode())
    assert answer.endswith(b"ok")


def test_ports_come_from_the_scheme() -> None:
    assert endpoint_of("https://API.example.org/v1") == ("api.example.org", 443)
    assert endpoint_of("http://[::1]:8000") == ("::1", 8000)
    with pytest.raises(ValueError, match="not an http or https URL"):
        endpoint_of("ftp://example.org")
