"""Exposed functions as tools: calls go through the gate, and results are kept by id."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple, cast

from seer.errors import ArgumentError, GateError, RemoteError
from seer.rpc.client import Gate, Handle
from seer.rpc.interface._schema import Function, Schema
from seer.rpc.library._json_schema import description, output_schema, to_call, tool_schema
from seer.tools._session import PATIENCE
from seer.tools._tool import Tool, ToolContext, ToolFailure, ToolOutput, typed_tool
from seer.tools._values import Save, ValueText

_KEPT = 50
_KEPT_IDS = 10_000
_SHOWN = 300
"""Characters of a call's arguments in a list of calls."""
_KEPT_HANDLES = 1000
_KEEP_ALIVE = 1.0
_MOST_BYTES = 1 << 30
"""The limit for a stream, whose items are collected in this process before they are shown."""


class _CitableCall(NamedTuple):
    """A call that its caller can cite."""

    call: str
    """The id at the gate, which is in the record."""
    function: str
    arguments: str
    session: str


class _Kept(NamedTuple):
    """A call that runs or has ended, whose result its agent can get by id."""

    task: asyncio.Task[ToolOutput]
    session: str


class FunctionTools:
    """The tools of one served interface, which are one caller of the gate."""

    def __init__(self, schema: Schema, gate: Gate, save_for: Callable[[str], Save]) -> None:
        """Make the tools.

        Args:
            schema: The interface.
            gate: Calls it.
            save_for: Takes a session's id and returns a function that keeps files for its agent.
        """
        self._schema = schema
        self._gate = gate
        self._save_for = save_for
        self._calls: OrderedDict[str, _Kept] = OrderedDict()
        self._numbers = itertools.count(1)
        self._items: dict[str, int] = {}
        self._handles: OrderedDict[str, Handle] = OrderedDict()
        """The handles that the agent was shown; the gate drops a handle that nothing refers to."""
        # Several clients refuse two servers with a tool of the same name.
        self._result_name = self._free_name("result")
        self._made: deque[_CitableCall] = deque(maxlen=_KEPT_IDS)

    def tools(self) -> list[Tool]:
        """A tool for each function, one to get results later, and one for the ids of calls."""
        found = [self._tool(function) for function in self._schema.functions.values()]
        return [*found, self._result_tool(), self._calls_tool()]

    def _free_name(self, ending: str) -> str:
        name = f"{self._schema.name}_{ending}"
        while name in self._schema.functions:
            name += "_"
        return name

    async def aclose(self) -> None:
        """Cancel what still runs."""
        tasks = [kept.task for kept in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._gate.close()

    def _tool(self, function: Function) -> Tool:
        async def handler(arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
            try:
                args, kwargs = to_call(function, _references(dict(arguments)))
            except ArgumentError as error:
                raise ToolFailure(str(error)) from None
            call_id = f"{function.name}-{next(self._numbers)}"
            task = asyncio.create_task(
                self._call(call_id, function, args, kwargs, session=context.session)
            )
            self._remember(call_id, _Kept(task, context.session))
            try:
                return await self._wait(call_id, PATIENCE, context)
            except asyncio.CancelledError:
                task.cancel()
                raise

        return Tool(
            name=function.name,
            description=description(function),
            input_schema=tool_schema(function),
            output_schema=output_schema(function),
            handler=handler,
        )

    def _result_tool(self) -> Tool:
        async def get_result(
            context: ToolContext, result_id: str, wait: float = PATIENCE
        ) -> ToolOutput:
            """Get the result of an earlier call that took long, waiting while it still runs.

            Args:
                result_id: As the earlier call gave it.
                wait: Seconds to wait at most.
            """
            own = [key for key, kept in self._calls.items() if kept.session == context.session]
            if result_id not in own:
                known = ", ".join(own[-5:]) or "none yet"
                raise ToolFailure(f"no result {result_id!r}; the latest are: {known}")
            return await self._wait(result_id, max(0.0, min(wait, 86_400.0)), context)

        get_result.__name__ = self._result_name
        return typed_tool(get_result, read_only=True)

    def _calls_tool(self) -> Tool:
        async def get_calls(context: ToolContext, last: int = 10) -> ToolOutput:
            """List your latest calls with their ids, by which the claims of a report cite them.

            Args:
                last: How many calls to list.
            """
            own = [made for made in self._made if made.session == context.session]
            shown = [
                {"call": made.call, "function": made.function, "arguments": made.arguments}
                for made in own[-max(1, last) :]
            ]
            text = json.dumps(shown, indent=1, ensure_ascii=False)
            return ToolOutput(text=text, structured={"result": shown})

        get_calls.__name__ = self._free_name("calls")
        return typed_tool(get_calls, read_only=True)

    async def _call(
        self,
        call_id: str,
        function: Function,
        args: list[Any],
        kwargs: dict[str, Any],
        *,
        session: str,
    ) -> ToolOutput:
        try:
            if function.is_generator:
                value: Any = []
                room = _MOST_BYTES
                stream = self._gate.astream(function.name, args, kwargs, plain=True)
                async with aclosing(stream):
                    async for item in stream:
                        room -= _weight(item)
                        if room < 0:
                            return _too_much(function.name, len(value))
                        value.append(item)
                        self._items[call_id] = len(value)
            else:
                value = await self._gate.acall(function.name, args, kwargs, plain=True)
        except RemoteError as error:
            trace = f"\n{error.remote_traceback}" if error.remote_traceback else ""
            return ToolOutput(text=f"{error.type_name}: {error}{trace}", failed=True)
        except GateError as error:
            return ToolOutput(text=f"{type(error).__name__}: {error}", failed=True)
        finally:
            self._items.pop(call_id, None)
            told = json.dumps([args, kwargs], default=str, ensure_ascii=False)
            short = told if len(told) <= _SHOWN else f"{told[:_SHOWN]}..."
            self._made.append(_CitableCall(self._gate.last_call(), function.name, short, session))
        return await ValueText(call_id, self._save_for(session), self._keep).result(value)

    def _keep(self, handle: Handle) -> None:
        self._handles[handle.reference()] = handle
        while len(self._handles) > _KEPT_HANDLES:
            self._handles.popitem(last=False)

    async def _wait(self, call_id: str, wait: float, context: ToolContext) -> ToolOutput:
        task = self._calls[call_id].task
        start = time.monotonic()
        while not task.done():
            left = wait - (time.monotonic() - start)
            if left <= 0:
                text = f"[still running; {self._result_name}(result_id={call_id!r}) waits for it]"
                return ToolOutput(text=text, structured={"result_id": call_id, "status": "running"})
            await asyncio.wait([task], timeout=min(_KEEP_ALIVE, left))
            if not task.done() and context.wants_progress:
                items = self._items.get(call_id)
                said = f"{items} items so far" if items else ""
                await context.report(time.monotonic() - start, said)
        if task.cancelled():
            # Awaiting the task would look like a cancellation of this call, which gets no answer.
            return ToolOutput(text=f"{call_id} was cancelled", failed=True)
        return task.result()

    def _remember(self, call_id: str, kept: _Kept) -> None:
        self._calls[call_id] = kept
        over = [key for key, old in self._calls.items() if old.task.done()]
        for key in over[: max(0, len(self._calls) - _KEPT)]:
            del self._calls[key]


def _too_much(function: str, count: int) -> ToolOutput:
    text = (
        f"{function}() was stopped after {count} items, because more would take over "
        f"{_MOST_BYTES:,} bytes; ask for fewer"
    )
    return ToolOutput(text=text, failed=True)


def _weight(value: Any) -> int:
    """The approximate size of a value in bytes."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        return 64 + sum(_weight(key) + _weight(item) for key, item in entries.items())
    if isinstance(value, list | tuple | set | frozenset):
        return 64 + sum(map(_weight, cast("list[Any]", value)))
    if isinstance(value, str | bytes):
        return 64 + len(value)
    return 64 + int(getattr(value, "nbytes", 0))


def _references(value: Any) -> Any:
    """The arguments with handles in the gate's form; an agent sends back the whole description."""
    if isinstance(value, list):
        return [_references(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value)
    if entries.get("$seer") == "handle":
        return {"$seer": "handle", "id": entries.get("id")}
    return {key: _references(item) for key, item in entries.items()}
