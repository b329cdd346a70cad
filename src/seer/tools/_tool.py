"""A tool: a name, a description, a schema and a function. This module knows no protocol."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, get_type_hints

from seer.errors import SeerError
from seer.execution import Image

logger = logging.getLogger(__name__)


class ToolFailure(SeerError):
    """The tool could not do what was asked; the message is for the agent."""


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    """The output of a tool."""

    text: str
    images: tuple[Image, ...] = ()
    failed: bool = False
    structured: Mapping[str, Any] | None = None


class ToolContext(Protocol):
    """The client that called a tool, during the call."""

    @property
    def session(self) -> str:
        """The id of the session that the agent works in; empty if it has none."""
        ...

    @property
    def wants_progress(self) -> bool:
        """Whether the client asked for progress messages."""
        ...

    async def report(self, seconds: float, message: str) -> None:
        """Send the client a progress message."""
        ...

    def started(self, name: str, stop: Stop) -> None:
        """Note code that the call has started, because it can go on after the call."""
        ...


Stop = Callable[[], Coroutine[Any, Any, bool]]
"""Stops code, and returns whether it has ended."""
Handler = Callable[[Mapping[str, Any], ToolContext], Awaitable[ToolOutput]]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool that agents can call."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    handler: Handler
    output_schema: Mapping[str, Any] | None = None
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class ToolSet:
    """All tools of one server."""

    name: str
    tools: Sequence[Tool]
    instructions: str = ""
    by_name: Mapping[str, Tool] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {tool.name: tool for tool in self.tools})

    async def listed(self) -> ToolSet:
        """See `ToolSource`."""
        return self

    async def ready(self) -> ToolSet:
        """See `ToolSource`."""
        return self


class ToolSource(Protocol):
    """The tools of one server, which may still be loading."""

    @property
    def name(self) -> str:
        """What agents call the server."""
        ...

    @property
    def instructions(self) -> str:
        """The instructions that agents get for the server."""
        ...

    async def listed(self) -> ToolSet:
        """The tools to list, as far as they are known. This returns soon."""
        ...

    async def ready(self) -> ToolSet:
        """The tools, once they can be called.

        Raises:
            SeerError: They could not be loaded.
        """
        ...


class LoadingTools:
    """Tools that are still loading. A client gets a list at once, and its early calls wait."""

    def __init__(
        self,
        name: str,
        known: ToolSet | None,
        loading: Coroutine[Any, Any, ToolSet],
        *,
        list_timeout: float = 20.0,
    ) -> None:
        """Offer the tools.

        Args:
            name: What agents call the server.
            known: The tools as last loaded, for clients that ask for the list during loading.
            loading: Its result is the tools. It runs as a task of the present loop, until `close`.
            list_timeout: Seconds after which a client that asks for the list gets an empty one.
                Clients wait about thirty seconds for a server to start.
        """
        self.name = name
        self._known = known
        self._loading = asyncio.create_task(loading)
        # A failure is reported to the clients that wait for the tools.
        self._loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._list_timeout = list_timeout

    async def close(self) -> None:
        """Stop loading."""
        self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)

    @property
    def instructions(self) -> str:
        """See `ToolSource`."""
        return "" if self._known is None else self._known.instructions

    async def listed(self) -> ToolSet:
        """See `ToolSource`."""
        if self._known is not None and not self._loading.done():
            return self._known
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._list_timeout):
                return await self.ready()
        return ToolSet(name=self.name, tools=())

    async def ready(self) -> ToolSet:
        """See `ToolSource`."""
        return await asyncio.shield(self._loading)


async def call_tool(
    tools: ToolSet, name: str, arguments: Mapping[str, Any], context: ToolContext
) -> ToolOutput:
    """Call a tool. A failure becomes its result, because the agent needs an answer.

    Lone surrogates in the result are replaced, because no message to an agent can hold them.

    Raises:
        LookupError: There is no such tool.
    """
    tool = tools.by_name.get(name)
    if tool is None:
        raise LookupError(f"there is no tool {name!r:.100}; there are: {', '.join(tools.by_name)}")
    try:
        result = await tool.handler(arguments, context)
    except Exception as error:
        return failed_result(name, error)
    structured = None if result.structured is None else _sendable_values(result.structured)
    return replace(result, text=sendable(result.text), structured=structured)


def failed_result(name: str, error: Exception) -> ToolOutput:
    """The result for an error in a tool, or in loading it."""
    text = str(error)
    if not isinstance(error, (SeerError, LookupError, ValueError)):
        logger.error("tool %r failed", name, exc_info=error)
        text = f"internal error: {type(error).__name__}: {error}"
    return ToolOutput(text=sendable(text), failed=True)


def server_name(name: str) -> str:
    """The name in a form that agents accept for a tool server: letters, digits, `_` and `-`."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "seer"


def sendable(text: str) -> str:
    """The text with each lone surrogate replaced by a question mark."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _sendable_values(values: Mapping[str, Any]) -> dict[str, Any]:
    text = json.dumps(values, ensure_ascii=False)
    clean = sendable(text)
    return dict(values) if clean == text else json.loads(clean)


def typed_tool(function: Callable[..., Awaitable[ToolOutput]], *, read_only: bool = False) -> Tool:
    """Make a tool from an async function, with a schema from its hints.

    A parameter named `context` is not shown to agents; it gets the `ToolContext`.
    """
    from pydantic import ConfigDict, Field, ValidationError, create_model

    hints = get_type_hints(function)
    doc = inspect.getdoc(function) or ""
    notes = _argument_notes(doc)
    fields: dict[str, Any] = {}
    wants_context = False
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "context":
            wants_context = True
            continue
        default: Any = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints[name], Field(default, description=notes.get(name)))
    model = create_model(
        f"{function.__name__}_arguments", __config__=ConfigDict(extra="forbid"), **fields
    )
    schema = model.model_json_schema()
    schema.pop("title", None)
    for entry in schema.get("properties", {}).values():
        entry.pop("title", None)

    async def handler(arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        try:
            checked = model.model_validate(dict(arguments))
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}"
                for problem in error.errors(include_url=False)
            )
            raise ToolFailure(f"{function.__name__}: {problems}") from None
        values = {name: getattr(checked, name) for name in fields}
        return await (function(**values, context=context) if wants_context else function(**values))

    return Tool(
        name=function.__name__,
        description=doc.split("\nArgs:")[0].strip(),
        input_schema=schema,
        handler=handler,
        read_only=read_only,
    )


def _argument_notes(doc: str) -> dict[str, str]:
    """The descriptions under `Args:`, by name."""
    notes: dict[str, str] = {}
    name = ""
    for line in doc.partition("\nArgs:\n")[2].split("\n"):
        if not line.startswith("    "):
            break
        match = re.match(r"    (\w+): (.*)", line)
        if match:
            name = match[1]
            notes[name] = match[2].strip()
        elif name:
            notes[name] += " " + line.strip()
    return notes
