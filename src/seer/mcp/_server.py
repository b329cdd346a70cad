"""Serves a set of tools with the MCP SDK: to one client over its pipes, or to many over HTTP.

Importing the SDK takes more than a second. Only this module imports it at the top, and `_sdk` loads
this module in a thread, at the latest when the first client connects.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from starlette.types import ASGIApp

import seer
from seer.errors import SeerError
from seer.mcp._lines import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    Pipes,
    Refusal,
    parse_line,
)
from seer.tools import ToolOutput, ToolSet
from seer.tools._tool import Stop, ToolSource, call_tool, failed_result, sendable

Context = ServerRequestContext[Any, Any]
_KEEP_ALIVE = 1.0


async def serve_client(source: ToolSource, pipes: Pipes) -> None:
    """Speak MCP with one client until it disconnects."""
    async with _message_streams(pipes) as (incoming, outgoing), anyio.create_task_group() as tasks:
        server = _make_server(source, pipes.session, tasks)
        await server.run(incoming, outgoing, server.create_initialization_options())
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def http_application(
    source: ToolSource, *, body_limit: int, max_sessions: int
) -> AsyncGenerator[ASGIApp]:
    """The tools as a web application that speaks Streamable HTTP. It does not check who calls."""
    async with anyio.create_task_group() as tasks:
        manager = StreamableHTTPSessionManager(
            _make_server(source, "", tasks),
            max_request_body_size=body_limit,
            max_sessions=max_sessions,
        )
        async with manager.run():
            yield manager.handle_request
        tasks.cancel_scope.cancel()


def _listing(tools: ToolSet) -> types.ListToolsResult:
    return types.ListToolsResult(
        tools=[
            types.Tool(
                name=tool.name,
                description=tool.description,
                input_schema=dict(tool.input_schema),
                output_schema=dict(tool.output_schema) if tool.output_schema else None,
                annotations=types.ToolAnnotations(
                    read_only_hint=tool.read_only, open_world_hint=False
                ),
            )
            for tool in tools.tools
        ]
    )


class _Server(Server[Any]):
    """A server whose tools can change while a client is connected."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *args: Any, **options: Any
    ) -> InitializationOptions:
        """See the SDK; its HTTP transport passes no options."""
        changing = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(changing, *args, **options)


def _make_server(source: ToolSource, session: str, tasks: TaskGroup) -> Server[Any]:
    """A server of the SDK.

    Args:
        source: Its tools.
        session: The id of the session that its clients' agent works in, if it has one.
        tasks: Runs work that continues after an answer.
    """

    changes = InMemorySubscriptionBus()

    async def announce(listed: types.ListToolsResult, context: Context) -> None:
        """Notify the client when the tools differ from those that it was sent."""
        with contextlib.suppress(SeerError):
            if _listing(await source.ready()) != listed:
                await context.session.send_tool_list_changed()
                await changes.publish(ToolsListChanged())

    async def list_tools(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        if params is not None and params.cursor is not None:
            raise MCPError(INVALID_PARAMS, f"cursor={params.cursor!r:.100}: there is only one page")
        try:
            tools = await source.listed()
        except SeerError as error:
            raise MCPError(INTERNAL_ERROR, f"the tools could not be loaded: {error}") from None
        found = _listing(tools)
        tasks.start_soon(announce, found, context)
        return found

    async def answer_call(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool_context = _ClientContext(context, session)
        try:
            tools = await _loaded(source, tool_context)
        except Exception as error:
            # An agent gets an answer for every failure.
            return _content(failed_result(params.name, error))
        try:
            return _content(
                await call_tool(tools, params.name, params.arguments or {}, tool_context)
            )
        except LookupError as error:
            raise MCPError(INVALID_PARAMS, str(error.args[0])) from None

    return _Server(
        source.name,
        version=seer.__version__,
        instructions=source.instructions or None,
        on_list_tools=list_tools,
        on_call_tool=answer_call,
        on_subscriptions_listen=ListenHandler(changes),
    )


async def _loaded(source: ToolSource, context: _ClientContext) -> ToolSet:
    """The tools, once they can be called; until then, the client gets progress messages."""
    ready = asyncio.ensure_future(source.ready())
    start = time.monotonic()
    try:
        while True:
            done, _ = await asyncio.wait([ready], timeout=_KEEP_ALIVE)
            if done:
                return ready.result()
            if context.wants_progress:
                await context.report(time.monotonic() - start, "loading the interface")
    finally:
        ready.cancel()


class _ClientContext:
    """The client that made a call."""

    def __init__(self, context: Context, session: str) -> None:
        self._context = context
        self.session = session

    @property
    def wants_progress(self) -> bool:
        meta = self._context.meta
        return bool(meta) and (meta or {}).get("progress_token") is not None

    async def report(self, seconds: float, message: str) -> None:
        await self._context.session.report_progress(seconds, None, sendable(message) or None)

    def started(self, name: str, stop: Stop) -> None:
        """Do nothing: code that a client leaves running goes on."""


def _content(result: ToolOutput) -> types.CallToolResult:
    blocks: list[types.ContentBlock] = [types.TextContent(text=result.text)]
    for image in result.images:
        data = base64.b64encode(image.data).decode()
        blocks.append(types.ImageContent(data=data, mime_type=image.mime))
    return types.CallToolResult(
        content=blocks,
        is_error=result.failed,
        structured_content=None if result.structured is None else dict(result.structured),
    )


@asynccontextmanager
async def _message_streams(
    pipes: Pipes,
) -> AsyncGenerator[
    tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception],
        MemoryObjectSendStream[SessionMessage],
    ]
]:
    """The pipes as the pair of streams that a server of the SDK runs on."""
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with to_server:
            while line := await pipes.read_line():
                if isinstance(line, bytes) and line.isspace():
                    continue
                message = _message_of(line)
                if isinstance(message, Refusal):
                    await _write(pipes, message.answer())
                else:
                    await to_server.send(SessionMessage(message))

    async def write() -> None:
        async with from_server:
            async for item in from_server:
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await _write(pipes, line.encode())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield incoming, outgoing
        tasks.cancel_scope.cancel()


def _message_of(line: bytes | Refusal) -> types.JSONRPCMessage | Refusal:
    found = line if isinstance(line, Refusal) else parse_line(line)
    if isinstance(found, Refusal):
        return found
    try:
        return types.jsonrpc_message_adapter.validate_python(found, by_name=False)
    except ValueError as error:
        given = found.get("id")
        request_id = given if isinstance(given, int | str) else None
        return Refusal(INVALID_REQUEST, f"not a JSON-RPC message: {str(error)[:200]}", request_id)


async def _write(pipes: Pipes, line: bytes) -> None:
    # Ignored, because the end of the client's input also shows that the client is gone.
    with contextlib.suppress(OSError):
        await pipes.write_line(line)
