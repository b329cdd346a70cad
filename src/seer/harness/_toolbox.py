"""The tools of a run, and calls of them.

The harness holds the connections to tool servers itself, for every vendor. So a vendor's process
needs no access to them, every call passes one place that counts it and can refuse it, and the
harness notices when a server dies.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import anyio

from seer.events import Block, ImageBlock, TextBlock, ToolInfo
from seer.events._events import text_blocks
from seer.harness._servers import LocalServer, ServerLink, ServerSpec, reason_of
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
    """The name of the server, if it died during the call."""
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
    """Answers tools from the record of a run."""

    @property
    def tools(self) -> Sequence[ToolInfo]: ...
    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome: ...


Link: TypeAlias = ServerLink | LocalServer
"""One tool server of a run."""


class ToolBox:
    """The tools of one run. Made by `open_toolbox`."""

    def __init__(self, links: Sequence[Link], recorded: RecordedTools | None = None) -> None:
        self._links = links
        self._where: dict[str, tuple[Link, str]] = {}
        self._recorded = recorded
        counts: dict[str, int] = {}
        for link in links:
            for tool in link.tools:
                counts[tool.name] = counts.get(tool.name, 0) + 1
        infos: list[ToolInfo] = [] if recorded is None else list(recorded.tools)
        self._replayed = {info.name: info.server for info in infos}
        for link in links:
            for tool in link.tools:
                name = tool.name if counts[tool.name] == 1 else f"{link.name}__{tool.name}"
                self._where[name] = (link, tool.name)
                infos.append(
                    ToolInfo(
                        name=name,
                        server=link.name,
                        description=tool.description or "",
                        input_schema=dict(tool.input_schema),
                    )
                )
        self.tools = tuple(infos)
        self._turns = {link.name: asyncio.Lock() for link in links if link.spec.ordered}

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
        link, tool = found
        if link.dead or (isinstance(link, ServerLink) and link.client is None):
            reason = link.dead or "its connection is closed"
            return _failed(f"the tool server {link.name!r} is not running: {reason}", link.name)
        try:
            text = json.dumps(arguments, ensure_ascii=False)
            text.encode()
        except UnicodeEncodeError as error:
            # It cannot be sent, and trying would end the connection.
            half = error.object[error.start]
            return _failed(f"an argument holds a lone surrogate ({half!r}); send whole text")
        if isinstance(link, LocalServer):
            return await _call_local(link, tool, json.loads(text))
        return await _call(link, tool, dict(arguments))

    async def stop_code(self, *, left: bool) -> str:
        """Stop the code that calls have started. Always ends, and is safe under cancellation.

        Args:
            left: Whether to stop code too that the agent has left running.

        Returns:
            What could not be stopped; empty if nothing runs.
        """
        local = [link for link in self._links if isinstance(link, LocalServer)]
        running: list[str] = []
        with anyio.CancelScope(shield=True):
            for names in await asyncio.gather(*(link.stop_code(left=left) for link in local)):
                running += names
        return ", ".join(running)


async def _call_local(link: LocalServer, tool: str, arguments: dict[str, Any]) -> ToolOutcome:
    started = time.monotonic()
    result = await link.call(tool, arguments)
    if result.failed and link.dead:
        return _failed(link.dead, link.name)
    images = (ImageBlock(data=image.data, mime_type=image.mime) for image in result.images)
    return ToolOutcome(
        content=(TextBlock(text=result.text), *images),
        is_error=result.failed,
        structured=None if result.structured is None else json.loads(json.dumps(result.structured)),
        seconds=time.monotonic() - started,
    )


async def _call(link: ServerLink, tool: str, arguments: dict[str, Any]) -> ToolOutcome:
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    assert link.client is not None
    started = time.monotonic()
    try:
        result = await link.client.call_tool(tool, arguments)
    except MCPError as error:
        if error.code != CONNECTION_CLOSED:
            return _failed(error.message)
        return _failed(link.died("it died during the call"), link.name)
    except (OSError, RuntimeError, ValueError, anyio.ClosedResourceError) as error:
        # A broken stream or an invalid answer makes the connection unusable.
        return _failed(link.died(f"its answer cannot be used: {reason_of(error)}"), link.name)
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
    links: list[Link] = [
        LocalServer(spec) if spec.kind == "local" else ServerLink(spec)
        for spec in specs
        if not spec.recorded
    ]
    if any(isinstance(link, ServerLink) for link in links):
        # Otherwise the first call would import it, which blocks the loop of all runs for a second.
        _background.add(task := asyncio.create_task(asyncio.to_thread(_import_validator)))
        task.add_done_callback(_background.discard)
    tasks = [asyncio.create_task(link.keep(), name=f"mcp {link.name}") for link in links]
    try:
        for link in links:
            await link.ready()
        yield ToolBox(links, recorded)
    finally:
        for link in links:
            link.stop()
        await _end(links, tasks)


async def _end(links: Sequence[Link], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the connections to close, with a time limit in case one of them hangs."""
    if not tasks:
        return
    with anyio.CancelScope(shield=True):
        _, late = await asyncio.wait(tasks, timeout=10)
        if late:
            for link in links:
                link.abandon()
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
