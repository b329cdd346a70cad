"""Tool servers: how a configuration describes them, and the connection to one.

Each connection has a task of its own, so that a server that dies affects no other. Tools of this
process need no connection; `LocalServer` calls them directly.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

import anyio

from seer.errors import ConfigError, SeerError, ToolServerError
from seer.execution._session import RECORDED
from seer.mcp._sdk import load_sdk
from seer.tools import Tool, ToolOutput
from seer.tools._tool import Stop, ToolSource, call_tool

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool as McpTool

logger = logging.getLogger(__name__)

START_TIMEOUT = 60.0
STOPPED_WITHIN = 15.0
"""Seconds that the end of a run waits for its code; a session kills code after five."""
_TAIL = 8192
"""Bytes of a server's last output that can explain its end."""
_KEYS = {"type", "command", "args", "env", "cwd", "url", "headers"}


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One entry of an `mcp_config`, checked."""

    name: str
    kind: Literal["stdio", "http", "sse", "inside", "local"]
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    recorded: bool = False
    """Whether a recorded run answers its tool calls, so that it is not started."""
    ordered: bool = False
    """Whether its calls run one after another. This holds for sessions, because the second cell of
    an answer can need the first."""
    instance: Any = None
    """`inside`: a server object of the `mcp` package in this process."""
    tools: ToolSource | None = field(default=None, repr=False)
    """`local`: Seer's own tools in this process."""
    is_open: Callable[[], bool] = field(default=lambda: True, repr=False, compare=False)
    """`local`: whether the session or interface that has the tools is still open."""
    session: str = ""
    """`local`: the id of the agent's session; empty if it has none."""


def parse_server(name: str, entry: object) -> ServerSpec:
    """Check one entry of an `mcp_config`.

    Raises:
        ConfigError: It is malformed.
        ToolServerError: Its command does not exist.
    """
    where = f"mcp_config[{name!r}]"
    if not isinstance(entry, Mapping):
        if not hasattr(entry, "call_tool"):
            raise ConfigError(where, entry, "must be a dict with 'command' or 'url'")
        return ServerSpec(name=name, kind="inside", instance=entry)
    given = cast("Mapping[str, Any]", entry)
    unknown = set(given) - _KEYS
    if unknown:
        raise ConfigError(where, sorted(unknown), f"unknown keys; known: {sorted(_KEYS)}")
    kind = given.get("type", "stdio" if "command" in given else "http")
    env = cast("Mapping[str, str]", given.get("env") or {})
    if kind == "stdio":
        command = given.get("command")
        if not isinstance(command, str) or not command:
            raise ConfigError(where, command, "a stdio server needs 'command'")
        if shutil.which(command, path=env.get("PATH")) is None:
            raise ToolServerError(
                f"tool server {name!r}: the command {command!r} does not exist or cannot be run; "
                "install it, or correct 'command' in mcp_config"
            )
        args = tuple(map(str, given.get("args") or ()))
        cwd = given.get("cwd")
        return ServerSpec(
            name=name,
            kind=kind,
            command=command,
            args=args,
            env=env,
            cwd=cwd,
            recorded=RECORDED in env,
        )
    if kind not in {"http", "sse"}:
        raise ConfigError(where, kind, "type must be 'stdio', 'http' or 'sse'")
    url = given.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ConfigError(where, url, f"a server of type {kind!r} needs an http 'url'")
    headers = cast("Mapping[str, str]", given.get("headers") or {})
    return ServerSpec(name=name, kind=kind, url=url, headers=headers)


class ServerConnection:
    """The connection to one server."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.client: Client | None = None
        self.tools: list[McpTool] = []
        self.dead: str | None = None
        """Why it can no longer be used, for the agent and the user."""
        self._stop = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._ready = _ready_future()
        self._log: TextIO | None = None

    @property
    def name(self) -> str:
        """The server's name."""
        return self.spec.name

    async def keep(self) -> None:
        """Hold the connection until `stop`."""
        with contextlib.ExitStack() as opened:
            try:
                # Inside `try`: without a free descriptor, this fails, and `ready` must not wait.
                log = opened.enter_context(
                    tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
                )
                self._log = cast("TextIO", log)
                with self._scope:
                    # In a thread: the first import takes a second, and the loop has other runs.
                    await asyncio.to_thread(load_sdk)
                    async with self._connect(self._log) as client:
                        self.client = client
                        self.tools = await _list_tools(client)
                        if not self._ready.done():
                            self._ready.set_result(None)
                        await self._stop.wait()
            except Exception as error:
                self.died(reason_of(error))
                if not self._ready.done():
                    self._ready.set_exception(ToolServerError(self.dead))
                logger.debug("%s", self.dead)
            finally:
                self.client = None
                self._log = None

    async def ready(self) -> None:
        """Wait until the server has listed its tools.

        Raises:
            ToolServerError: It does not start, or does not answer.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await asyncio.shield(self._ready)
        except TimeoutError:
            self.died(f"no answer within {START_TIMEOUT:g} s of its start")
            raise ToolServerError(self.dead) from None

    def stop(self) -> None:
        """Let `keep` end, without waiting for a server that is not ready yet."""
        self._stop.set()
        if not self._ready.done():
            self._ready.cancel()
            self.abandon()

    def abandon(self) -> None:
        """End the connection without the server's cooperation; its process is killed."""
        self._scope.cancel()

    def died(self, reason: str) -> str:
        """Mark the connection as unusable; returns the reason with the server's last output."""
        said = ""
        if self._log is not None:
            self._log.flush()
            # Read only the end, because a server can log without limit. `pread` leaves the file
            # position alone, which the server's process shares. Opening the file again could fail,
            # because there may be no free descriptor.
            number = self._log.fileno()
            start = max(0, os.fstat(number).st_size - _TAIL)
            said = os.pread(number, _TAIL, start).decode("utf-8", "replace")
        tail = said.strip()[-2000:]
        words = f"tool server {self.name!r}: {reason}" + (f"; last output:\n{tail}" if tail else "")
        self.dead = self.dead or words
        return self.dead

    def _connect(self, log: TextIO) -> "Client":
        import httpx2
        from mcp import Client, StdioServerParameters, stdio_client
        from mcp.client.sse import sse_client
        from mcp.client.streamable_http import streamable_http_client

        spec = self.spec
        if spec.kind == "inside":
            return Client(spec.instance)
        if spec.kind == "stdio":
            parameters = StdioServerParameters(
                command=spec.command, args=list(spec.args), env=dict(spec.env), cwd=spec.cwd
            )
            return Client(stdio_client(parameters, errlog=log))
        if spec.kind == "sse":
            return Client(sse_client(spec.url, headers=dict(spec.headers)))
        if not spec.headers:
            return Client(spec.url)
        http = httpx2.AsyncClient(headers=dict(spec.headers), timeout=httpx2.Timeout(30, read=None))
        return Client(streamable_http_client(spec.url, http_client=http))


class LocalServer:
    """Tools of this process, called directly, with the methods of a connection."""

    def __init__(self, spec: ServerSpec) -> None:
        assert spec.tools is not None
        self.spec = spec
        self.tools: Sequence[Tool] = ()
        self._source = spec.tools
        self._stop = asyncio.Event()
        self._ready = _ready_future()
        self._calls: set[asyncio.Task[ToolOutput]] = set()
        self._left: dict[str, Stop] = {}
        """The code of calls that have ended. Code that takes longer than the agent wanted to wait
        goes on after its call."""
        self._cancelled: dict[str, Stop] = {}
        """The code of calls that were cancelled. Cancelling a call interrupts its code."""

    @property
    def name(self) -> str:
        """The server's name."""
        return self.spec.name

    @property
    def dead(self) -> str | None:
        """Why no tool can be called any more."""
        return None if self.spec.is_open() else f"tool server {self.name!r}: it was closed"

    async def keep(self) -> None:
        """Wait for `stop`, then for the calls that were cancelled."""
        try:
            self.tools = (await self._source.listed()).tools
            self._ready.set_result(None)
        except Exception as error:
            # Any error: `ready` would wait forever for a task that has failed.
            reason = str(error) if isinstance(error, SeerError) else reason_of(error)
            self._ready.set_exception(ToolServerError(f"tool server {self.name!r}: {reason}"))
            return
        await self._stop.wait()
        self.abandon()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def ready(self) -> None:
        """Wait until the tools are known.

        Raises:
            ToolServerError: They could not be loaded.
        """
        await asyncio.shield(self._ready)

    def stop(self) -> None:
        """Let `keep` end."""
        self._stop.set()

    def abandon(self) -> None:
        """Cancel all calls."""
        for task in self._calls:
            _cancel_once(task)

    async def stop_code(self, *, left: bool) -> list[str]:
        """Stop the code of cancelled calls and, if `left`, code that other calls left running.

        Returns:
            The names of the executions that still run.
        """
        code = {**self._cancelled, **(self._left if left else {})}
        stops = {name: asyncio.create_task(stop()) for name, stop in code.items()}
        if stops:
            await asyncio.wait(stops.values(), timeout=STOPPED_WITHIN)
        return [name for name, task in stops.items() if not _has_ended(name, task)]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool. Cancelling this cancels the tool, but does not wait for its end."""
        tools = await self._source.ready()
        context = _RunContext(self.spec.session)
        task = asyncio.create_task(call_tool(tools, tool, arguments, context))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            output = await asyncio.shield(task)
        except asyncio.CancelledError:
            _cancel_once(task)
            self._cancelled.update(context.code)
            raise
        self._left.update(context.code)
        return output


class _RunContext:
    """What a tool learns about the run that calls it."""

    wants_progress = False

    def __init__(self, session: str) -> None:
        self.session = session
        self.code: dict[str, Stop] = {}

    async def report(self, seconds: float, message: str) -> None:
        """Do nothing, because a run does not ask for progress."""

    def started(self, name: str, stop: Stop) -> None:
        """Keep `stop` for the end of the run."""
        self.code[name] = stop


def _ready_future() -> asyncio.Future[None]:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # If several servers fail, only the first error is raised; asyncio would log the others.
    ready.add_done_callback(lambda done: done.cancelled() or done.exception())
    return ready


def _cancel_once(call: asyncio.Task[ToolOutput]) -> None:
    """Cancel a call once: a second time would end its wait for the code that it interrupts."""
    if not call.cancelling():
        call.cancel()


def _has_ended(name: str, stop: asyncio.Task[bool]) -> bool:
    if stop.done() and (error := stop.exception()) is not None:
        logger.error("the code of session %s could not be stopped", name, exc_info=error)
        return False
    return stop.done() and stop.result()


async def _list_tools(client: "Client") -> "list[McpTool]":
    tools: list[McpTool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools.extend(page.tools)
        cursor = page.next_cursor
        if not cursor:
            return tools


def reason_of(error: BaseException) -> str:
    """An exception in one line; a group with one exception becomes that exception."""
    inner: Any = getattr(error, "exceptions", ())
    if len(inner) == 1:
        return reason_of(inner[0])
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
