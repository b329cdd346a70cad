"""The server over HTTP: which clients it accepts, what they get, and when their sessions end."""

import asyncio
import http.client
import json
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from seer.errors import ConfigError
from seer.mcp import HttpServer, open_stdio_server
from seer.testing import on_loop
from seer.tools import ToolContext, ToolFailure, ToolOutput, ToolSet, typed_tool

pytestmark = pytest.mark.full

TOKEN = "a token of the tests"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
started = threading.Event()
cancelled = threading.Event()


async def add(a: int, b: int = 1) -> ToolOutput:
    """Add."""
    return ToolOutput(text=str(a + b), structured={"sum": a + b})


async def refuse() -> ToolOutput:
    """Refuse."""
    raise ToolFailure("not today")


async def half() -> ToolOutput:
    """Half a character."""
    character = chr(0xD800)
    return ToolOutput(text=f"half {character}", structured={character: [character]})


async def count(context: ToolContext) -> ToolOutput:
    """Count, telling how it goes."""
    for number in range(3):
        await context.report(float(number), f"at {number} {chr(0xD800)}")
    return ToolOutput(text="counted")


async def echo(text: str) -> ToolOutput:
    """Give it back."""
    return ToolOutput(text=text)


async def forever() -> ToolOutput:
    """Never ends."""
    started.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.set()
        raise
    return ToolOutput(text="")


class LoadingTools:
    """Tools that load until the event is set."""

    name = "lab"
    instructions = ""

    def __init__(self) -> None:
        self.loaded = threading.Event()

    async def listed(self) -> ToolSet:
        return await self.ready() if self.loaded.is_set() else ToolSet(name="lab", tools=())

    async def ready(self) -> ToolSet:
        await asyncio.to_thread(self.loaded.wait, 60)
        return ToolSet(name="lab", tools=[typed_tool(add)])


@pytest.fixture
async def server() -> AsyncGenerator[HttpServer]:
    started.clear()
    cancelled.clear()
    functions = [add, refuse, half, count, echo, forever]
    tools = ToolSet(name="lab", tools=[typed_tool(function) for function in functions])
    opened = await on_loop(HttpServer.open(tools, port=0, token=TOKEN))
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def client_of(server: HttpServer, mode: str = "auto") -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        asyncio.timeout(60),
        httpx2.AsyncClient(headers=headers, timeout=60) as web,
        Client(streamable_http_client(server.url, http_client=web), mode=mode) as client,
    ):
        yield client


class Raw:
    """One connection for requests written by the test."""

    def __init__(self, server: HttpServer) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        self.session = ""

    def ask(
        self,
        message: object = None,
        *,
        method: str = "POST",
        path: str = "/mcp",
        **headers: str | None,
    ) -> http.client.HTTPResponse:
        """Send a request; underscores in names of headers are dashes, None leaves one out."""
        given: dict[str, str | None] = {
            "Authorization": f"Bearer {TOKEN}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "Mcp-Session-Id": self.session or None,
        }
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = None if message is None else json.dumps(message)
        told = {name: value for name, value in given.items() if value is not None}
        self._connection.request(method, path, body, told)
        return self._connection.getresponse()

    def initialize(self) -> None:
        response = self.ask(HELLO)
        assert response.status == 200
        self.session = response.headers["mcp-session-id"]
        assert answer_of(response)["result"]["capabilities"]["tools"]["listChanged"] is True
        notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        response = self.ask(notice)
        assert response.status == 202
        response.read()

    def close(self) -> None:
        self._connection.close()


def answer_of(response: http.client.HTTPResponse) -> dict[str, Any]:
    """The answer on a stream of events, or in a body."""
    text = response.read().decode()
    found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return json.loads(found[-1] if found else text)


def call(name: str, arguments: Mapping[str, object] | None = None) -> dict[str, object]:
    params = {"name": name, "arguments": dict(arguments or {})}
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_lists_and_calls_tools(server: HttpServer, mode: str) -> None:
    told: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with client_of(server, mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["add", "refuse", "half", "count", "echo", "forever"]
        result = await client.call_tool("add", {"a": 40, "b": 2})
        assert text_of(result) == "42"
        assert result.structured_content == {"sum": 42}
        failed = await client.call_tool("refuse", {})
        assert failed.is_error and text_of(failed) == "not today"
        assert text_of(await client.call_tool("count", {}, progress_callback=note)) == "counted"
        assert told == ["at 0 ?", "at 1 ?", "at 2 ?"]
        marked = await client.call_tool("half", {})
        assert text_of(marked) == "half ?" and marked.structured_content == {"?": ["?"]}
        assert text_of(await client.call_tool("echo", {"text": "Grüße 🧪"})) == "Grüße 🧪"


async def test_several_clients_work_at_once_and_one_leaving_does_not_disturb(
    server: HttpServer,
) -> None:
    async with client_of(server) as one, client_of(server, "legacy") as two:
        async with client_of(server, "legacy") as three:
            clients = (one, two, three)
            results = await asyncio.gather(
                *(client.call_tool("add", {"a": n}) for n in range(20) for client in clients)
            )
            assert [int(text_of(result)) for result in results] == [n // 3 + 1 for n in range(60)]
        assert text_of(await two.call_tool("add", {"a": 1})) == "2"


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_client_that_listens_learns_that_tools_have_loaded(
    transport: str,
) -> None:
    """Since 2026-07-28, a client gets changes only on a stream that it asked for."""
    tools = LoadingTools()

    async def check(client: Client) -> None:
        assert (await client.list_tools()).tools == []
        async with client.listen(tools_list_changed=True) as changes:
            tools.loaded.set()
            async for _ in changes:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["add"]
                return

    async def serve() -> None:
        if transport == "http":
            server = await on_loop(HttpServer.open(tools, port=0, token=TOKEN))
            async with client_of(server) as client:
                await check(client)
        else:
            server = await open_stdio_server(tools)
            (entry,) = server.mcp_config.values()
            relay = StdioServerParameters(command=entry["command"], args=entry["args"])
            async with asyncio.timeout(60), Client(relay) as client:
                await check(client)
        await server.close()

    await on_loop(serve())


async def test_a_client_that_left_before_the_tools_had_loaded_harms_nobody() -> None:
    tools = LoadingTools()

    server = await on_loop(HttpServer.open(tools, port=0, token=TOKEN))
    raw = Raw(server)
    await asyncio.to_thread(raw.initialize)
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    response = await asyncio.to_thread(raw.ask, listing)
    assert answer_of(response)["result"]["tools"] == []
    (await asyncio.to_thread(raw.ask, method="DELETE")).read()
    raw.close()
    tools.loaded.set()
    async with client_of(server, "legacy") as client:
        assert text_of(await client.call_tool("add", {"a": 1})) == "2"
        assert text_of(await client.call_tool("add", {"a": 2})) == "3"
    await server.close()


@pytest.mark.parametrize("given", [None, "", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN])
async def test_nothing_is_told_without_the_token(server: HttpServer, given: str | None) -> None:
    for method in ("POST", "GET", "DELETE", "OPTIONS"):
        raw = Raw(server)
        response = await asyncio.to_thread(
            raw.ask, HELLO if method == "POST" else None, method=method, Authorization=given
        )
        assert response.status == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert "token" in json.loads(response.read())["error"]
        assert TOKEN not in str(response.headers)
        raw.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:9999", "Origin": "http://localhost:9998"}, 403),
        ({"Host": "localhost:9999", "Origin": "http://localhost:9999"}, 200),
    ],
)
async def test_other_sites_are_refused_even_with_the_token(
    server: HttpServer, headers: dict[str, Any], status: int
) -> None:
    raw = Raw(server)
    response = await asyncio.to_thread(raw.ask, HELLO, **headers)
    assert response.status == status
    response.read()
    raw.close()


async def test_there_is_nothing_at_other_paths(server: HttpServer) -> None:
    raw = Raw(server)
    for path in ("/", "/mcp/", "/.well-known/oauth-protected-resource"):
        response = await asyncio.to_thread(raw.ask, HELLO, path=path)
        assert response.status == 404
        response.read()
    raw.close()


async def test_what_is_too_large_or_no_message_is_refused_and_harms_nothing(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seer.mcp._http.LINE_LIMIT", 1 << 20)
    tools = ToolSet(name="lab", tools=[typed_tool(echo)])
    small = await on_loop(HttpServer.open(tools, port=0, token=TOKEN))
    raw = Raw(small)
    try:
        await asyncio.to_thread(raw.initialize)
        size = str((1 << 20) + 1)
        response = await asyncio.to_thread(raw.ask, None, Content_Length=size)
        assert response.status == 413
        raw.close()
        for message in ([HELLO], "ping", {"jsonrpc": "2.0", "id": 2, "method": 5}):
            response = await asyncio.to_thread(raw.ask, message)
            assert response.status == 400
            assert "error" in answer_of(response)
        text = "x" * 900_000
        response = await asyncio.to_thread(raw.ask, call("echo", {"text": text}))
        assert answer_of(response)["result"]["content"][0]["text"] == text
    finally:
        raw.close()
        await small.close()


async def test_no_more_sessions_are_opened_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seer.mcp._http._MAX_SESSIONS", 1)
    tools = ToolSet(name="lab", tools=[typed_tool(add)])
    server = await on_loop(HttpServer.open(tools, port=0, token=TOKEN))
    first, second = Raw(server), Raw(server)
    try:
        await asyncio.to_thread(first.initialize)
        response = await asyncio.to_thread(second.ask, HELLO)
        assert response.status == 503
        response.read()
        response = await asyncio.to_thread(first.ask, method="DELETE")
        assert response.status == 200
        await asyncio.to_thread(second.initialize)
    finally:
        first.close()
        second.close()
        await server.close()


async def test_deleting_a_session_cancels_its_calls(server: HttpServer) -> None:
    caller, other = Raw(server), Raw(server)
    await asyncio.to_thread(caller.initialize)
    other.session = caller.session
    waiting = asyncio.create_task(asyncio.to_thread(caller.ask, call("forever")))
    assert await asyncio.to_thread(started.wait, 60)
    response = await asyncio.to_thread(other.ask, method="DELETE")
    assert response.status == 200
    response.read()
    assert await asyncio.to_thread(cancelled.wait, 60)
    (await waiting).read()
    response = await asyncio.to_thread(other.ask, call("add", {"a": 1}))
    assert response.status == 404
    caller.close()
    other.close()


async def test_a_client_that_has_gone_takes_its_session_with_it(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seer.mcp._http._GRACE", 0.01)
    caller, listener = Raw(server), Raw(server)
    await asyncio.to_thread(caller.initialize)
    listener.session = caller.session
    stream = await asyncio.to_thread(listener.ask, method="GET")
    assert stream.status == 200
    response = await asyncio.to_thread(caller.ask, call("forever"))
    assert response.status == 200
    assert await asyncio.to_thread(started.wait, 60)
    # As when its process is killed: it does not say that it ends.
    for connection in (stream, listener, response, caller):
        connection.close()
    assert await asyncio.to_thread(cancelled.wait, 60)


async def test_a_client_whose_stream_broke_keeps_its_session(server: HttpServer) -> None:
    raw, listener = Raw(server), Raw(server)
    await asyncio.to_thread(raw.initialize)
    listener.session = raw.session
    for _ in range(2):
        stream = await asyncio.to_thread(listener.ask, method="GET")
        assert stream.status == 200
        stream.close()
        listener.close()
        response = await asyncio.to_thread(raw.ask, call("add", {"a": 1}))
        assert answer_of(response)["result"]["content"][0]["text"] == "2"
        # The server notices the end of a stream some time after its client has gone.
        async with asyncio.timeout(60):
            while (again := await asyncio.to_thread(listener.ask, method="GET")).status == 409:
                again.read()
        again.close()
        listener.close()
    raw.close()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_cancelled_call_is_cancelled_here(server: HttpServer, mode: str) -> None:
    async with client_of(server, mode) as client:
        waiting = asyncio.create_task(client.call_tool("forever", {}))
        assert await asyncio.to_thread(started.wait, 60)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await asyncio.to_thread(cancelled.wait, 60)
        assert text_of(await client.call_tool("add", {"a": 1})) == "2"


async def test_closing_the_server_ends_calls_and_frees_the_port(server: HttpServer) -> None:
    port = urlsplit(server.url).port or 0
    tools = ToolSet(name="lab", tools=[typed_tool(add)])
    with pytest.raises(ConfigError, match=f"port={port}: is already in use"):
        await on_loop(HttpServer.open(tools, port=port, token=TOKEN))
    raw = Raw(server)
    await asyncio.to_thread(raw.initialize)
    response = await asyncio.to_thread(raw.ask, call("forever"))
    assert await asyncio.to_thread(started.wait, 60)
    await server.close()
    assert cancelled.is_set()
    response.close()
    raw.close()
    again = await on_loop(HttpServer.open(tools, port=port, token=TOKEN))
    await again.close()
