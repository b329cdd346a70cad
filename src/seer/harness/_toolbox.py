"""The tools of a run, and calls of them.

The harness holds the connections to tool servers itself, for every vendor. So a vendor's process
needs no access to them, every call passes one place that counts it and can refuse it, and the
harness notices when a server dies.
"""

import asyncio
import base64
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import anyio

from seer.events import Block, ImageBlock, TextBlock, ToolInfo
from seer.events._events import text_blocks
from seer.harness._servers import LocalServer, ServerConnection, ServerSpec, reason_of
from seer.tools._tool import sendable

if TYPE_CHECKING:
    from mcp.types import ContentBlock


@dataclass(frozen=True, kw_only=True)
class ToolOutcome:
    """The outcome of a tool call."""

    content: tuple[Block, ...]
    is_error: bool = False
    structured: Any = None
    lost: str | None = None
    """The name of the server, if it is dead."""
    diverged: bool = False
    """Whether a call of a replayed tool differs from the record."""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """All text of the result, joined by newlines."""
        return "\n".join(text_blocks(self.content))


_background: set[asyncio.Task[None]] = set()


def _import_validator() -> None:
    import jsonschema  # noqa: F401  # pyright: ignore[reportUnusedImport, reportMissingModuleSource]


class RecordedTools(Protocol):
    """Answers tool calls from the record of a run."""

    @property
    def tools(self) -> Sequence[ToolInfo]: ...
    @property
    def names(self) -> Mapping[str, str]:
        """The server of every tool that was offered, by the tool's name."""
        ...

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome: ...


_MAX_NAME = 64
"""Characters of a tool's name; OpenAI and Gemini refuse longer ones."""
ToolServer: TypeAlias = ServerConnection | LocalServer
"""One tool server of a run."""


def accepted_name(name: str) -> str:
    """A name as every vendor accepts it for a tool: letters, digits, `-` and `_`."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def offered_name(name: str) -> str:
    """An accepted name that begins with a letter or `_` and is not longer than vendors allow."""
    if not re.match(r"[A-Za-z_]", name):
        name = f"_{name}"
    if len(name) > _MAX_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: _MAX_NAME - 9]}_{digest}"
    return name


def offered_names(
    tools: Sequence[tuple[str, str]], recorded: RecordedTools | None = None
) -> list[str]:
    """The names under which agents see tools; no two are equal.

    Args:
        tools: For each tool, the name of its server and its own name.
        recorded: The tools of a record beside which they are offered. A tool keeps the name that
            it had there, although fewer or other tools are offered now.
    """
    before = {} if recorded is None else dict(recorded.names)
    own = Counter(offered_name(accepted_name(tool)) for _, tool in tools)
    found: dict[str, None] = {}
    for server, tool in tools:
        accepted = accepted_name(tool)
        full = f"{accepted_name(server)}__{accepted}"
        name = offered_name(accepted)
        if own[name] > 1:
            name = offered_name(full)
        # Records of earlier versions have names without the two last rules.
        kept = (name, offered_name(accepted), offered_name(full), accepted, full)
        unique = next((n for n in kept if before.get(n) == server and n not in found), name)
        numbered = (f"_{number}" for number in count(2))
        while unique in found or before.get(unique, server) != server:
            suffix = next(numbered)
            unique = name[: _MAX_NAME - len(suffix)] + suffix
        found[unique] = None
    return [*found]


class ToolBox:
    """The tools of one run. Made by `open_toolbox`."""

    def __init__(
        self, servers: Sequence[ToolServer], recorded: RecordedTools | None = None
    ) -> None:
        self._servers = servers
        self._where: dict[str, tuple[ToolServer, str]] = {}
        self._recorded = recorded
        named = [(server.name, tool.name) for server in servers for tool in server.tools]
        names = iter(offered_names(named, recorded))
        infos: list[ToolInfo] = [] if recorded is None else list(recorded.tools)
        self._replayed = {info.name: info.server for info in infos}
        for server in servers:
            for tool in server.tools:
                name = next(names)
                self._where[name] = (server, tool.name)
                infos.append(
                    ToolInfo(
                        name=name,
                        server=server.name,
                        description=tool.description or "",
                        input_schema=dict(tool.input_schema),
                    )
                )
        self.tools = tuple(infos)
        self._turns = {server.name: asyncio.Lock() for server in servers if server.spec.ordered}

    def turn(self, name: str) -> AbstractAsyncContextManager[None]:
        """Encloses a call of the tool. Calls of an ordered server wait here for their turn."""
        return self._turns.get(self.server_of(name) or "", nullcontext())

    def concurrent(self, name: str) -> bool:
        """Whether calls of the tool may run at the same time as others."""
        return self.server_of(name) not in self._turns

    def server_of(self, name: str) -> str | None:
        """The server that has the tool, or None."""
        found = self._where.get(name)
        return found[0].name if found else self._replayed.get(name)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Call a tool. A failing tool, an unknown one and a dead server are outcomes, not errors.

        Args:
            name: The name as in `tools`.
            arguments: Checked by the server against its schema.
        """
        if self._recorded is not None and name in self._replayed:
            return self._recorded.call(name, arguments)
        found = self._where.get(name)
        if found is None:
            known = ", ".join(sorted({*self._where, *self._replayed})) or "none"
            return _failed(f"no tool named {name!r} is available here; available: {known}")
        server, tool = found
        if server.dead or (isinstance(server, ServerConnection) and server.client is None):
            reason = server.dead or "its connection is closed"
            return _failed(f"the tool server {server.name!r} is not running: {reason}", server.name)
        try:
            text = json.dumps(arguments, ensure_ascii=False)
            text.encode()
        except UnicodeEncodeError as error:
            # A lone surrogate cannot be sent, and trying would end the connection.
            half = error.object[error.start]
            return _failed(f"an argument holds a lone surrogate ({half!r}); send whole text")
        if isinstance(server, LocalServer):
            return await _call_local(server, tool, json.loads(text))
        return await _call(server, tool, dict(arguments))

    async def stop_code(self, *, left: bool) -> str:
        """Stop the code that calls have started. Always returns, and is safe under cancellation.

        Args:
            left: Whether to also stop code that the agent has left running.

        Returns:
            The names of the executions that could not be stopped; empty if none is left.
        """
        local = [server for server in self._servers if isinstance(server, LocalServer)]
        running: list[str] = []
        with anyio.CancelScope(shield=True):
            for names in await asyncio.gather(*(server.stop_code(left=left) for server in local)):
                running += names
        return ", ".join(running)


async def _call_local(server: LocalServer, tool: str, arguments: dict[str, Any]) -> ToolOutcome:
    started = time.monotonic()
    result = await server.call(tool, arguments)
    if result.failed and server.dead:
        return _failed(server.dead, server.name)
    images = (ImageBlock(data=image.data, mime_type=image.mime) for image in result.images)
    return ToolOutcome(
        content=(TextBlock(text=result.text), *images),
        is_error=result.failed,
        structured=None if result.structured is None else json.loads(json.dumps(result.structured)),
        seconds=time.monotonic() - started,
    )


async def _call(server: ServerConnection, tool: str, arguments: dict[str, Any]) -> ToolOutcome:
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    assert server.client is not None
    started = time.monotonic()
    try:
        result = await server.client.call_tool(tool, arguments)
    except MCPError as error:
        if error.code != CONNECTION_CLOSED:
            return _failed(error.message)
        return _failed(server.died("it died during the call"), server.name)
    except (OSError, RuntimeError, ValueError, anyio.ClosedResourceError) as error:
        # A broken stream or an invalid answer makes the connection unusable.
        return _failed(server.died(f"its answer cannot be used: {reason_of(error)}"), server.name)
    return ToolOutcome(
        content=tuple(_block(item) for item in result.content),
        is_error=bool(result.is_error),
        structured=result.structured_content,
        seconds=time.monotonic() - started,
    )


@asynccontextmanager
async def open_toolbox(
    specs: Sequence[ServerSpec], recorded: RecordedTools | None = None
) -> AsyncGenerator[ToolBox, None]:
    """Connect to all servers at once; close them all at the end.

    Args:
        specs: The servers.
        recorded: Answers for the servers that are replayed.

    Raises:
        ToolServerError: A server does not start or answer; none is left running.
    """
    servers: list[ToolServer] = [
        LocalServer(spec) if spec.kind == "local" else ServerConnection(spec)
        for spec in specs
        if not spec.recorded
    ]
    if any(isinstance(server, ServerConnection) for server in servers):
        # Otherwise the first call would import it, which blocks the loop of all runs for a second.
        _background.add(task := asyncio.create_task(asyncio.to_thread(_import_validator)))
        task.add_done_callback(_background.discard)
    tasks = [asyncio.create_task(server.keep(), name=f"mcp {server.name}") for server in servers]
    try:
        for server in servers:
            await server.ready()
        yield ToolBox(servers, recorded)
    finally:
        for server in servers:
            server.stop()
        await _end(servers, tasks)


async def _end(servers: Sequence[ToolServer], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the connections to close, with a time limit in case one of them hangs."""
    if not tasks:
        return
    with anyio.CancelScope(shield=True):
        _, late = await asyncio.wait(tasks, timeout=10)
        if late:
            for server in servers:
                server.abandon()
            await asyncio.wait(late, timeout=10)


def _block(item: "ContentBlock") -> Block:
    if item.type == "text":
        return TextBlock(text=sendable(item.text))
    if item.type == "image":
        try:
            return ImageBlock(data=base64.b64decode(item.data), mime_type=item.mime_type)
        except ValueError:
            return TextBlock(text="[an image that is not base64]")
    return TextBlock(text=item.model_dump_json(by_alias=True, exclude_none=True))


def _failed(message: str, lost: str | None = None) -> ToolOutcome:
    return ToolOutcome(content=(TextBlock(text=message),), is_error=True, lost=lost)
