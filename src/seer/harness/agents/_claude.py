"""Claude, through the Claude Agent SDK; the only module that imports it.

The SDK runs the Claude CLI as a process, which gets nothing but the conversation. Its own tools are
off, it reads no settings, and it runs in an empty folder with a private home and its own
environment (`_confine`). This process serves the tools of the run to the CLI over its standard
streams. So the CLI needs no connection to a tool server, and every call goes through the context.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from seer._settings import setting
from seer.errors import SecretMissingError
from seer.events import (
    AnswerFinished,
    Block,
    ErrorKind,
    Event,
    ImageBlock,
    RunStarted,
    Text,
    TextBlock,
    TextDelta,
    Thinking,
    ToolCall,
    ToolInfo,
    ToolResult,
    Usage,
    UserMessage,
)
from seer.harness._agent import Agent, AgentRequest, max_retries, require
from seer.harness._context import AgentContext, RunOver
from seer.harness._finish_reasons import end_of
from seer.harness._limits import cost_of
from seer.harness._toolbox import ToolOutcome, accepted_name
from seer.harness.confinement._confine import Confinement, confined

if TYPE_CHECKING:
    import claude_agent_sdk as sdk

KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
ENDPOINT = "https://api.anthropic.com"
SETTINGS = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    # Otherwise tools are hidden behind a search tool and absent from the request.
    "ENABLE_TOOL_SEARCH": "false",
    # A cell can run for hours; the harness has its own limits.
    "MCP_TOOL_TIMEOUT": str(24 * 3600 * 1000),
}


class ClaudeAgent(Agent):
    """The provider `claude`."""

    name = "claude"

    def check(self, request: AgentRequest) -> None:
        """Check for the SDK and a key."""
        require("claude", modules=("claude_agent_sdk",), extra="claude")
        if not self.secrets(request):
            raise SecretMissingError(
                "provider 'claude' needs a key: set ANTHROPIC_API_KEY (or CLAUDE_CODE_OAUTH_TOKEN, "
                "made with `claude setup-token`), or give run_agent(api_key=...)"
            )

    def secrets(self, request: AgentRequest) -> tuple[str, ...]:
        """The given key and those of the environment."""
        values = (request.api_key, *map(setting, KEYS))
        return tuple(value for value in values if value)

    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        """Talk to the CLI until the conversation ends."""
        import claude_agent_sdk as sdk

        url = request.base_url or os.environ.get("ANTHROPIC_BASE_URL") or ENDPOINT
        async with confined(_program(), env=_environment(request, url), endpoints=(url,)) as cell:
            conversation = Conversation(request, context)
            options = _options(sdk, request, conversation, cell)
            try:
                async with sdk.ClaudeSDKClient(options) as client:
                    try:
                        await conversation.hold(client)
                    except BaseException:
                        cell.kill()
                        raise
            except sdk.ClaudeSDKError as error:
                malformed = type(error).__name__ in {"CLIJSONDecodeError", "MessageParseError"}
                kind: ErrorKind = "malformed" if malformed else "connection"
                context.fail(kind, f"the Claude process failed: {error}{cell.said()}", raw=error)


def _options(
    claude: Any, request: AgentRequest, conversation: Conversation, cell: Confinement
) -> sdk.ClaudeAgentOptions:
    servers, names = conversation.serve(claude)
    return claude.ClaudeAgentOptions(
        tools=list(request.builtin_tools),
        allowed_tools=[*names, *request.builtin_tools],
        disallowed_tools=[],
        permission_mode="dontAsk",
        system_prompt=request.system_prompt,
        mcp_servers=servers,
        strict_mcp_config=True,
        setting_sources=[],
        model=request.model,
        cwd=cell.folder,
        cli_path=cell.launcher,
        include_partial_messages=True,
        verbatim_prompts=True,
        max_buffer_size=64 * 1024 * 1024,
        stderr=cell.stderr,
    )


def _program() -> Path:
    """The CLI that comes with the SDK."""
    from claude_agent_sdk import __file__ as where

    return Path(where).parent / "_bundled" / "claude"


def _environment(request: AgentRequest, url: str) -> dict[str, str]:
    values = {key: value for key in KEYS if (value := setting(key))}
    if request.api_key:
        values = {"ANTHROPIC_API_KEY": request.api_key}
    retries = {"CLAUDE_CODE_MAX_RETRIES": str(max_retries())}
    return {**SETTINGS, **retries, **values, "ANTHROPIC_BASE_URL": url}


_STATUS: dict[int, ErrorKind] = {
    400: "request",
    401: "authentication",
    402: "quota",
    403: "authentication",
    404: "request",
    413: "request",
    429: "rate_limit",
    500: "overloaded",
    503: "overloaded",
    529: "overloaded",
}
_NAMES: dict[str, ErrorKind] = {
    "authentication_failed": "authentication",
    "billing_error": "quota",
    "max_output_tokens": "incomplete",
    "rate_limit": "rate_limit",
}
_ABORTED = {"aborted_streaming", "aborted_tools"}


@dataclass
class _Pending:
    """A tool call of the model that the CLI has not yet requested."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass
class Conversation:
    """Turns the SDK's messages into events, and the CLI's tool requests into calls."""

    request: AgentRequest
    context: AgentContext
    model: str | None = None
    usage: dict[str, int] = field(default_factory=dict[str, int])
    counted: bool = True
    """Whether the present answer has ended and its usage is counted."""
    trouble: Any = None
    """A message of the CLI that reports an error, until it is clear whether the run continues."""
    turn_id: str | None = None
    pending: list[_Pending] = field(default_factory=list[_Pending])
    outcomes: dict[str, ToolOutcome] = field(default_factory=dict[str, ToolOutcome])
    names: dict[str, str] = field(default_factory=dict[str, str])
    calls: dict[str, str] = field(default_factory=dict[str, str])
    announced: asyncio.Condition = field(default_factory=asyncio.Condition)

    # --- tools -------------------------------------------------------------------------------

    def serve(self, claude: Any) -> tuple[dict[str, Any], list[str]]:
        """Servers in this process that offer the run's tools, and the CLI's names for them."""
        groups: dict[str, list[Any]] = {}
        for tool in self.context.tools:
            server = accepted_name(tool.server)
            short = unique = tool.name.removeprefix(f"{server}__") or tool.name
            # Without its prefix, a name can be another tool's, or that of one of another server.
            numbered = (f"_{number}" for number in count(2))
            while f"mcp__{server}__{unique}" in self.names:
                unique = short + next(numbered)
            self.names[f"mcp__{server}__{unique}"] = tool.name
            groups.setdefault(server, []).append(
                claude.SdkMcpTool(
                    name=unique,
                    description=tool.description,
                    input_schema=dict(tool.input_schema) or {"type": "object"},
                    handler=self._handler(tool),
                    # The CLI makes calls one by one, unless the tools are marked as read-only.
                    annotations=claude.ToolAnnotations(read_only_hint=True)
                    if self.context.concurrent(tool.name)
                    else None,
                )
            )
        servers = {
            name: claude.create_sdk_mcp_server(name, tools=tools) for name, tools in groups.items()
        }
        return servers, list(self.names)

    def _handler(self, tool: ToolInfo) -> Callable[[Mapping[str, Any]], Any]:
        async def handle(arguments: Mapping[str, Any]) -> dict[str, Any]:
            call = await self._claim(tool.name, arguments)
            if call is None:
                refusal = {"type": "text", "text": "the call was not made by the model"}
                return {"content": [refusal], "is_error": True}
            try:
                outcome = await self.context.run_tool(tool.name, arguments, call_id=call.id)
            except RunOver:
                # An answer would make the CLI ask the model again before it ends.
                await anyio.sleep_forever()
                raise
            self.outcomes[call.id] = outcome
            return {
                "content": [_sdk_block(block) for block in outcome.content],
                "is_error": outcome.is_error,
            }

        return handle

    async def _claim(self, name: str, arguments: Mapping[str, Any]) -> _Pending | None:
        """Wait for the model's call that this request of the CLI belongs to, and for its event."""

        def find() -> _Pending | None:
            calls = [call for call in self.pending if call.name == name]
            same = (call for call in calls if dict(call.arguments) == dict(arguments))
            return next(same, calls[0] if calls else None)

        with anyio.move_on_after(30):
            async with self.announced:
                # The CLI requests tools before the answer has ended. The usage of the answer can
                # cross a limit, so it is counted first.
                while find() is None or not self.counted:
                    await self.announced.wait()
        call = find()
        if call is not None:
            self.pending.remove(call)
        return call

    # --- messages ------------------------------------------------------------------------------

    async def hold(self, client: Any) -> None:
        """Send each message and follow the answer to its end."""
        text: str | None = with_history(self.request.task, self.request.history)
        if not text:
            text = await self.context.next_message()
        while text is not None:
            await client.query(text)
            ended = False
            async with self.context.exchange():
                ended = await self._follow(client.receive_response())
            if not ended:
                await self._interrupt(client)
            text = await self.context.next_message()

    async def _interrupt(self, client: Any) -> None:
        with anyio.move_on_after(10):
            await client.interrupt()
            async for _ in client.receive_response():
                continue  # messages that still arrive belong to the interrupted answer

    async def _follow(self, messages: AsyncIterator[Any]) -> bool:
        """Follow an answer; False if the CLI would continue after a refusal.

        The CLI would continue once, with a prompt of its own. For other vendors, a refusal is the
        end.
        """
        async for message in messages:
            await self.take(message)
            if self.counted and self.context.answer and self.context.answer.reason == "refused":
                return type(message).__name__ == "ResultMessage"
        return True

    async def take(self, message: Any) -> None:
        """Report what one message of the SDK says."""
        kind = type(message).__name__
        if self.trouble is not None and (kind == "UserMessage" or _starts(message)):
            self._troubled()
        if kind == "StreamEvent":
            await self._stream(message.event)
        elif kind == "AssistantMessage":
            await self._assistant(message)
        elif kind == "UserMessage":
            self._tool_results(message)
        elif kind == "SystemMessage":
            self._system(message)
        elif kind == "ResultMessage":
            self._result(message)

    async def _stream(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "message_start":
            await self._end(None)
            self.counted = False
            message = event["message"]
            self._begin(message.get("id"), message.get("model"))
            self.usage = _counts(message.get("usage") or {})
        elif kind == "content_block_delta" and event["delta"].get("type") == "text_delta":
            self.context.emit(TextDelta(text=event["delta"]["text"]))
        elif kind == "message_delta":
            self.usage |= _counts(event.get("usage") or {})
            delta: Mapping[str, Any] = event.get("delta") or {}
            await self._end(delta.get("stop_reason"))
        elif kind == "message_stop":
            # After an error in its middle, an answer has no `message_delta`.
            await self._end(None)

    def _begin(self, turn_id: str | None, model: str | None) -> bool:
        """Note the answer that a message belongs to; True if it is a new one."""
        if turn_id == self.turn_id:
            return False
        self.turn_id = turn_id
        self.model = model
        self.context.begin_turn()
        return True

    async def _end(self, word: str | None) -> None:
        """End the present answer: count its usage, report why it ended, let its tools run."""
        if self.counted:
            return
        self._emit_usage()
        self.context.emit(AnswerFinished(reason=end_of(word), vendor_reason=word, model=self.model))
        async with self.announced:
            self.counted = True
            self.announced.notify_all()

    def _emit_usage(self) -> None:
        counts = self.usage
        cached = counts.get("cache_read_input_tokens", 0)
        written = counts.get("cache_creation_input_tokens", 0)
        usage = Usage(
            input_tokens=counts.get("input_tokens", 0) + cached + written,
            output_tokens=counts.get("output_tokens", 0),
            cache_read_tokens=cached,
            cache_write_tokens=written,
            raw=dict(counts),
        )
        self.context.emit(replace(usage, cost_usd=cost_of(usage, self.model, "anthropic")))

    async def _assistant(self, message: Any) -> None:
        if message.error is not None:
            self.trouble = message
            return
        if self._begin(message.message_id, message.model):
            # The answer was not streamed, so no other message reports its end.
            self.usage, self.counted = _counts(message.usage or {}), False
            await self._end(message.stop_reason)
        for block in message.content:
            kind = type(block).__name__
            if kind == "TextBlock" and block.text:
                self.context.emit(Text(text=block.text, raw=message))
            elif kind == "ThinkingBlock" and block.thinking:
                self.context.emit(Thinking(text=block.thinking, raw=message))
            elif kind in {"ToolUseBlock", "ServerToolUseBlock"}:
                await self._tool_call(block, message)

    async def _tool_call(self, block: Any, message: object) -> None:
        name = self.names.get(block.name) or str(block.name)
        servers = {tool.name: tool.server for tool in self.context.tools}
        known = block.name in self.names
        self.calls[block.id] = name
        self.context.emit(
            ToolCall(
                id=block.id,
                name=name,
                server=servers.get(name) if known else None,
                arguments=block.input,
                raw=message,
            )
        )
        if known:
            async with self.announced:
                self.pending.append(_Pending(id=block.id, name=name, arguments=block.input))
                self.announced.notify_all()

    def _tool_results(self, message: Any) -> None:
        if isinstance(message.content, str):
            return
        for block in message.content:
            if type(block).__name__ != "ToolResultBlock":
                continue
            outcome = self.outcomes.pop(block.tool_use_id, None)
            self.context.emit(
                ToolResult(
                    id=block.tool_use_id,
                    name=self.calls.pop(block.tool_use_id, "unknown"),
                    content=outcome.content if outcome else _blocks(block.content),
                    is_error=bool(block.is_error),
                    structured=outcome.structured if outcome else None,
                    seconds=outcome.seconds if outcome else None,
                    # Our result already has the same images.
                    raw=message if outcome is None else None,
                )
            )

    def _system(self, message: Any) -> None:
        if message.subtype != "api_retry":
            return
        data = message.data
        status = data.get("error_status")
        kind = _STATUS.get(status, "connection") if isinstance(status, int) else "connection"
        what = f"the vendor answered {status}" if status else "the vendor could not be reached"
        wait = float(data.get("retry_delay_ms") or 0) / 1000
        # The first attempt is none of the retries.
        attempt = f"attempt {data.get('attempt')} of {int(data.get('max_retries') or 0) + 1}"
        if kind == "authentication":
            # The CLI would retry a wrong key again and again.
            self.context.fail(kind, f"{what}{_advice(kind)}", raw=message)
            raise RunOver
        self.context.fail(kind, f"{what} ({attempt})", raw=message, retry_in=wait)

    def _troubled(self) -> None:
        """Report an error after which the CLI continues."""
        message, self.trouble = self.trouble, None
        kind = _NAMES.get(message.error, "overloaded")
        text = " ".join(block.text for block in message.content if hasattr(block, "text"))
        self.context.fail(kind, text, raw=message, retry_in=0.0)

    def _result(self, message: Any) -> None:
        if not message.is_error or message.terminal_reason in _ABORTED:
            if self.trouble is not None:
                self._troubled()
            return
        trouble, self.trouble = self.trouble, None
        status = message.api_error_status
        text = message.result or "; ".join(message.errors or ()) or message.subtype
        kind = _NAMES.get(trouble.error) if trouble is not None else None
        if kind is None and status is not None:
            kind = _STATUS.get(status, "overloaded" if status >= 500 else "request")
        kind = kind or _kind_of(text)
        self.context.fail(kind, f"{text}{_advice(kind)}", raw=message)


def _starts(message: Any) -> bool:
    """Whether the message begins a new answer of the model."""
    return type(message).__name__ == "StreamEvent" and message.event.get("type") == "message_start"


def _kind_of(text: str) -> ErrorKind:
    lowered = text.lower()
    if "connect" in lowered or "socket" in lowered or "network" in lowered:
        return "connection"
    if "timed out" in lowered or "timeout" in lowered:
        return "timeout"
    if "api key" in lowered or "authenticat" in lowered or "login" in lowered:
        return "authentication"
    return "malformed"


def _advice(kind: ErrorKind) -> str:
    return {
        "authentication": "; check ANTHROPIC_API_KEY",
        "quota": "; the account needs credit",
        "rate_limit": "; wait a while, or use another model or key",
        "overloaded": "; the vendor has trouble, try again later",
    }.get(kind, "")


def _counts(usage: Mapping[str, Any]) -> dict[str, int]:
    return {key: value for key, value in usage.items() if isinstance(value, int)}


def _sdk_block(block: Block) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    data = base64.b64encode(block.data).decode("ascii")
    return {"type": "image", "data": data, "mimeType": block.mime_type}


def _blocks(content: object) -> tuple[Block, ...]:
    """The blocks of a result in the vendor's form."""
    if not isinstance(content, list):
        return (TextBlock(text=str(content or "")),)
    blocks: list[Block] = []
    for item in cast("list[dict[str, Any]]", content):
        source = cast("dict[str, Any]", item.get("source") or {})
        if item.get("type") == "image" and source.get("type") == "base64":
            data = base64.b64decode(source["data"])
            blocks.append(ImageBlock(data=data, mime_type=source["media_type"]))
        elif item.get("type") == "text":
            blocks.append(TextBlock(text=item["text"]))
        else:
            blocks.append(TextBlock(text=json.dumps(item)))
    return tuple(blocks)


_OPENING = (
    "You continue work that is under way. Below is everything that happened so far; the tools are "
    "in the state that these calls left them in. Go on from there.\n\n<history>\n"
)


def with_history(task: str, history: Sequence[Event]) -> str:
    """The first message of an agent that gets its history as text."""
    if not history:
        return task
    parts = [line for event in history if (line := _line(event))]
    return _OPENING + "\n\n".join(parts) + "\n</history>" + (f"\n\n{task}" if task else "")


def _line(event: Event) -> str:
    if isinstance(event, RunStarted):
        return f"[task]\n{event.task}"
    if isinstance(event, UserMessage):
        return f"[user]\n{event.text}"
    if isinstance(event, Text):
        return f"[you]\n{event.text}"
    if isinstance(event, ToolCall):
        return f"[you called {event.name}]\n{json.dumps(dict(event.arguments))}"
    if isinstance(event, ToolResult):
        images = f"\n({len(event.images)} images)" if event.images else ""
        return f"[result of {event.name}]\n{event.text}{images}"
    return ""
