"""Agents of any vendor but Claude, through one model-neutral library (pydantic-ai).

One loop serves all vendors: ask the model, report its answer, call the tools, ask again. `_openai`
and `_gemini` have what differs (client, key, default model). The library's own agent loop is not
used, because limits, interrupts and the last turn belong to the context.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import anyio

from seer._settings import setting
from seer.errors import SecretMissingError
from seer.events import (
    AnswerFinished,
    ErrorKind,
    Event,
    ImageBlock,
    RunStarted,
    Text,
    TextBlock,
    TextDelta,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from seer.harness._agent import Agent, AgentRequest, max_retries, require
from seer.harness._context import AgentContext, RunOver
from seer.harness._finish_reasons import end_of
from seer.harness._limits import cost_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ToolCallPart
    from pydantic_ai.models import Model

LONGEST_WAIT = 60.0
CONNECT_TIMEOUT = 20.0
ANSWER_TIMEOUT = 600.0


class PydanticAIAgent(Agent):
    """What the model-neutral providers have in common."""

    keys: tuple[str, ...]
    """Environment variables that may hold the key."""
    extra: str
    modules: tuple[str, ...]
    """The vendor's own packages."""
    vendor: str
    """The vendor's name in the price list."""

    @abstractmethod
    def default_model(self, request: AgentRequest) -> str:
        """The model if the user named none.

        Raises:
            ConfigError: There is no sensible default.
        """

    @abstractmethod
    def open_model(self, request: AgentRequest, key: str | None, http: Any) -> "Model[Any]":
        """The model, with retries off: this module retries, so that each retry is reported."""

    def needs_key(self, request: AgentRequest) -> bool:
        """Whether a run needs a key."""
        return True

    def check(self, request: AgentRequest) -> None:
        """Check for the SDK, a key and a model."""
        modules = ("pydantic_ai", "tenacity", *self.modules)
        require(self.name, modules=modules, extra=self.extra)
        if self.needs_key(request) and self._key(request) is None:
            raise SecretMissingError(
                f"provider {self.name!r} needs a key: set {self.keys[0]}, or give "
                "run_agent(api_key=...)"
            )
        self.model_name(request)

    def model_name(self, request: AgentRequest) -> str:
        """The named model, or the provider's default."""
        return request.model or self.default_model(request)

    def secrets(self, request: AgentRequest) -> tuple[str, ...]:
        """The key that will be used."""
        key = self._key(request)
        return (key,) if key else ()

    def _key(self, request: AgentRequest) -> str | None:
        found = map(setting, self.keys)
        return request.api_key or next((value for value in found if value), None)

    async def run(self, request: AgentRequest, context: AgentContext) -> None:
        """Ask, call tools, ask again."""
        import httpx2

        timeout = httpx2.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT)
        async with httpx2.AsyncClient(timeout=timeout) as http:
            model = self.open_model(request, self._key(request), http)
            async with model:
                await _Loop(self, request, context=context, model=model).hold()


class _Loop:
    """One conversation."""

    def __init__(
        self,
        agent: PydanticAIAgent,
        request: AgentRequest,
        *,
        context: AgentContext,
        model: "Model[Any]",
    ) -> None:
        self._agent = agent
        self._request = request
        self._context = context
        self._model = model
        self._messages: list[ModelMessage] = to_messages(request.history)

    async def hold(self) -> None:
        """Answer each message until there are no more."""
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        text: str | None = self._request.task or None
        if text is None and not self._request.history:
            text = await self._context.next_message()
        while text is not None or self._request.history:
            if text is not None:
                self._messages.append(ModelRequest(parts=[UserPromptPart(text)]))
            kept = len(self._messages)
            done = False
            async with self._context.exchange():
                await self._answer()
                done = True
            if not done:
                del self._messages[kept:]  # an interrupted answer is not part of the conversation
            text = await self._context.next_message()
            if text is None:
                return

    async def _answer(self) -> None:
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        told = False
        while True:
            self._context.begin_turn()
            async with self._reported():
                response = await self._ask()
                if response.parts:
                    self._messages.append(response)
                said = self._report(response)
                end = self._end(response)
                if end.reason == "refused":
                    return
                parts = await self._call_all(response.tool_calls)
                if not parts:
                    unusable = end.reason == "malformed_call" or (end.reason == "stop" and not said)
                    if told or not unusable:
                        return
                    told = True
                    parts = [UserPromptPart(self._ask_again(end))]
                self._messages.append(ModelRequest(parts=parts))

    def _ask_again(self, end: AnswerFinished) -> str:
        """The message to a model whose answer cannot be used; reports a temporary error."""
        if end.reason == "malformed_call":
            message = "your last answer was a tool call that cannot be read, and it was not run"
        else:
            message = "your last answer was empty"
        self._context.fail("malformed", f"the model was told: {message}", retry_in=0.0)
        return f"[{message.capitalize()}. Please answer again.]"

    async def _ask(self) -> "ModelResponse":
        """Ask the model once, and retry while the vendor's failure is temporary."""
        import tenacity

        most = max_retries() + 1

        def wait(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            hint = getattr(error, "retry_after", None)
            if hint is not None:
                return min(float(hint), LONGEST_WAIT)
            return tenacity.wait_exponential_jitter(initial=0.5, max=LONGEST_WAIT)(state)

        def told(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            assert error is not None
            left = state.next_action.sleep if state.next_action else 0.0
            attempt = f"attempt {state.attempt_number} of {most}"
            self._context.fail(
                kind_of(error), f"{_message_of(error)} ({attempt})", raw=error, retry_in=left
            )

        attempts = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(most),
            wait=wait,
            retry=tenacity.retry_if_exception(_is_temporary),
            before_sleep=told,
            reraise=True,
        )
        return await attempts(self._ask_once)

    async def _ask_once(self) -> "ModelResponse":
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        parameters = ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=tool.name,
                    description=tool.description or None,
                    parameters_json_schema=dict(tool.input_schema),
                    strict=False,
                )
                for tool in self._context.tools
            ]
        )
        stream = model_request_stream(
            self._model,
            _with_instructions(self._messages, self._request.system_prompt),
            model_request_parameters=parameters,
            instrument=False,
        )
        async with stream as answer:
            async for event in answer:
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    self._context.emit(TextDelta(text=event.part.content))
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    self._context.emit(TextDelta(text=event.delta.content_delta))
        return answer.get()

    def _report(self, response: "ModelResponse") -> bool:
        """Report the model's text and usage; True if there is text."""
        from pydantic_ai.messages import TextPart, ThinkingPart

        texts: list[str] = []
        for part in response.parts:
            if isinstance(part, ThinkingPart) and part.content:
                self._context.emit(Thinking(text=part.content, raw=response))
            elif isinstance(part, TextPart) and part.content:
                texts.append(part.content)
        if refusal := (response.provider_details or {}).get("refusal"):
            texts.append(refusal)
        for text in texts:
            self._context.emit(Text(text=text, raw=response))
        used = response.usage
        usage = Usage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
            raw=used,
        )
        # The price list does not apply to the user's own endpoint.
        cost = None if self._request.base_url else self._cost(usage)
        self._context.emit(replace(usage, cost_usd=cost))
        return bool(texts)

    def _end(self, response: "ModelResponse") -> AnswerFinished:
        """Report how the answer ended."""
        details = response.provider_details or {}
        word: str | None = details.get("finish_reason") or details.get("block_reason")
        refused = details.keys() & {"refusal", "block_reason"}
        end = AnswerFinished(
            reason="refused" if refused else end_of(word),
            vendor_reason=word,
            model=response.model_name,
        )
        self._context.emit(end)
        return end

    def _cost(self, usage: Usage) -> float | None:
        return cost_of(usage, self._agent.model_name(self._request), self._agent.vendor)

    async def _call_all(self, calls: "Sequence[ToolCallPart]") -> "list[ModelRequestPart]":
        """Make the calls of one answer concurrently; returns the results in the order of the
        calls."""
        tasks = [asyncio.create_task(self._call(call)) for call in calls]
        try:
            return [part for parts in await asyncio.gather(*tasks) for part in parts]
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait(tasks)

    async def _call(self, call: "ToolCallPart") -> "Sequence[ModelRequestPart]":
        from pydantic_ai.messages import BinaryContent, ToolReturnPart

        try:
            arguments = call.args_as_dict(raise_if_invalid=True)
        except (ValueError, AssertionError):
            self._context.emit(
                ToolCall(id=call.tool_call_id, name=call.tool_name, server=None, raw=call)
            )
            text = f"the arguments are not a JSON object: {call.args}"
            content = (TextBlock(text=text),)
            self._context.emit(
                ToolResult(
                    id=call.tool_call_id, name=call.tool_name, content=content, is_error=True
                )
            )
            return [
                ToolReturnPart(
                    tool_name=call.tool_name, content=text, tool_call_id=call.tool_call_id
                )
            ]
        outcome = await self._context.call_tool(
            call.tool_call_id, call.tool_name, arguments=arguments, raw=call
        )
        parts: list[Any] = [outcome.text or "(no output)"]
        for block in outcome.content:
            if isinstance(block, ImageBlock):
                parts.append(BinaryContent(block.data, media_type=block.mime_type))
        return [
            ToolReturnPart(
                tool_name=call.tool_name,
                content=parts if len(parts) > 1 else parts[0],
                tool_call_id=call.tool_call_id,
                outcome="failed" if outcome.is_error else "success",
            )
        ]

    @asynccontextmanager
    async def _reported(self) -> AsyncGenerator[None, None]:
        """Turn vendors' failures into events; every other exception is a defect and is raised."""
        from pydantic_ai.exceptions import AgentRunError

        try:
            yield
        except AgentRunError as error:
            kind = kind_of(error)
            advice = f"; check {self._agent.keys[0]}" if kind == "authentication" else ""
            self._context.fail(kind, f"{_message_of(error)}{advice}", raw=error)
            raise RunOver from error


def kind_of(error: BaseException) -> ErrorKind:
    """The kind of failure of an exception of the library."""
    from pydantic_ai import exceptions as vendor

    kinds: list[tuple[type[BaseException], ErrorKind]] = [
        (vendor.ModelAuthenticationError, "authentication"),
        (vendor.ModelQuotaExceededError, "quota"),
        (vendor.ModelRateLimitError, "rate_limit"),
        (vendor.ModelTimeoutError, "timeout"),
        (vendor.ModelRequestTimeout, "timeout"),
        (vendor.ModelConnectionError, "connection"),
        (vendor.ModelOverloadedError, "overloaded"),
        (vendor.ModelUnavailableError, "overloaded"),
        (vendor.ModelServerError, "overloaded"),
        (vendor.ModelRequestRejectedError, "request"),
        (vendor.ContentFilterError, "refused"),
        (vendor.UnexpectedModelBehavior, "malformed"),
        (vendor.ModelHTTPError, "request"),
        (vendor.ModelAPIError, "malformed"),
    ]
    for cls, kind in kinds:
        if isinstance(error, cls):
            return kind
    return "internal"


def _is_temporary(error: BaseException) -> bool:
    return kind_of(error) in {"rate_limit", "overloaded", "connection", "timeout"}


def _message_of(error: BaseException) -> str:
    """The vendor's message, without the JSON around it."""
    said = _message_in(getattr(error, "body", None))
    status = getattr(error, "status_code", None)
    if said:
        return f"the vendor answered {status}: {said}"[:2000] if status else said[:2000]
    return (getattr(error, "message", None) or str(error))[:2000]


def _message_in(body: Any) -> str:
    """The message in the body of an error, for every vendor's form."""
    if isinstance(body, list) and body:
        return _message_in(cast("list[Any]", body)[0])
    if isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        return _message_in(fields.get("error")) or _message_in(fields.get("message"))
    return body if isinstance(body, str) else ""


def _with_instructions(
    messages: "Sequence[ModelMessage]", system_prompt: str
) -> "list[ModelMessage]":
    from pydantic_ai.messages import ModelRequest

    return [
        replace(message, instructions=system_prompt or None)
        if isinstance(message, ModelRequest)
        else message
        for message in messages
    ]


def to_messages(events: Sequence[Event]) -> "list[ModelMessage]":
    """The events of an earlier run as the library's messages."""
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    messages: list[ModelMessage] = []
    said: list[Any] = []
    heard: list[Any] = []

    def flush(said: list[Any], heard: list[Any]) -> None:
        if said:
            messages.append(ModelResponse(parts=list(said)))
            said.clear()
        if heard:
            messages.append(ModelRequest(parts=list(heard)))
            heard.clear()

    for event in events:
        if isinstance(event, (Text, ToolCall)) and heard:
            flush(said, heard)
        if isinstance(event, RunStarted):
            heard.append(UserPromptPart(event.task))
        elif isinstance(event, UserMessage):
            flush(said, heard)
            heard.append(UserPromptPart(event.text))
        elif isinstance(event, Text):
            said.append(TextPart(event.text))
        elif isinstance(event, ToolCall):
            said.append(ToolCallPart(event.name, dict(event.arguments), event.id))
        elif isinstance(event, ToolResult):
            part = ToolReturnPart(tool_name=event.name, content=event.text, tool_call_id=event.id)
            heard.append(part)
    flush(said, heard)
    return messages
