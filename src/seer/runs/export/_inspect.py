"""Exports runs as Inspect logs, for `inspect view` and all programs that read such logs.

One run is one log with one sample. Inspect's own classes and its own writer make the file. An
`.eval` file is more than a zip of JSON (compression, pools of messages, summaries), and its layout
depends on Inspect's version, so an implementation here would go stale. This needs the extra
`inspect`.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from seer import events as seer_events
from seer._sync import run_sync
from seer.errors import ConfigError, MissingExtraError
from seer.runs._calls import GateCall
from seer.runs._info import RunInfo
from seer.runs._reader import Run

try:
    from inspect_ai.event import (
        ErrorEvent,
        Event,
        InfoEvent,
        ModelEvent,
        SampleLimitEvent,
        SpanBeginEvent,
        SpanEndEvent,
        ToolEvent,
    )
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalError,
        EvalLog,
        EvalMetric,
        EvalPlan,
        EvalResults,
        EvalSample,
        EvalSampleLimit,
        EvalScore,
        EvalSpec,
        EvalStats,
        EvalStatus,
        write_eval_log_async,
    )
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
        Content,
        ContentImage,
        ContentReasoning,
        ContentText,
        GenerateConfig,
        ModelOutput,
        ModelUsage,
        StopReason,
    )
    from inspect_ai.scorer import Score
    from inspect_ai.tool import ToolCall, ToolCallError, ToolInfo, ToolParam, ToolParams
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"Inspect logs are written by Inspect's own package, which is not installed ({error}); "
        "run: pip install 'seer-interp[inspect]'"
    ) from error

LimitType = Literal["time", "token", "turn", "cost", "operator", "custom"]

_STATUS: dict[str, EvalStatus] = {
    "running": "started",
    "completed": "success",
    "limit": "success",
    "cancelled": "cancelled",
    "error": "error",
    "crashed": "error",
}
_LIMITS: dict[str, LimitType] = {
    "turns": "turn",
    "seconds": "time",
    "tokens": "token",
    "cost_usd": "cost",
    "stop": "operator",
}
_STOPS: dict[str, StopReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "max_tokens",
    "refused": "content_filter",
}
_Answer: TypeAlias = (
    seer_events.Text
    | seer_events.Thinking
    | seer_events.ToolCall
    | seer_events.Usage
    | seer_events.AnswerFinished
)
"""Events that belong to an answer of the model."""
_ENDINGS = (".eval", ".json")
_NAME_PARTS = str.maketrans("_/:+", "----")


def export_inspect(runs: Run | Sequence[Run], target: Path | str) -> list[Path]:
    """Write runs as logs of Inspect, one for each.

    Args:
        runs: The runs; they may still be running.
        target: A folder, created if it is missing, in which each log gets the name that Inspect
            would give it. For one run, it can be a file that ends in `.eval` or `.json`.

    Returns:
        The files that were written, in the order of the runs.

    Raises:
        ConfigError: The target is neither a folder nor such a file.
        MissingExtraError: The extra `inspect` is not installed.
        RecordError: A record cannot be read.
    """
    chosen = [runs] if isinstance(runs, Run) else list(runs)
    place = Path(target)
    folder = place.is_dir() or not place.suffix
    if not folder and (place.suffix not in _ENDINGS or len(chosen) != 1):
        rule = "must be a folder, or for one run a file that ends in .eval or .json"
        raise ConfigError("target", str(target), rule)
    (place if folder else place.parent).mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for run in chosen:
        log = _log(run)
        file = place / _file_name(log) if folder else place
        # The writer would append to an existing file of this name.
        part = file.with_name(f".{file.name}.part{file.suffix}")
        run_sync(write_eval_log_async(log, str(part)))
        part.replace(file)
        written.append(file)
    return written


def _file_name(log: EvalLog) -> str:
    parts = (log.eval.created, log.eval.task, log.eval.task_id)
    return "_".join(part.translate(_NAME_PARTS) for part in parts) + ".eval"


def _log(run: Run) -> EvalLog:
    info = run.info
    status = info.status_now
    transcript = _Transcript(info, list(run.typed_events()))
    transcript.add_calls(run.calls())
    began, ended = info.created, info.ended
    usage = {transcript.model: transcript.usage} if transcript.usage is not None else {}
    failed = _STATUS[status] == "error"
    error = _error(info.message or status) if failed else None
    score = info.score
    spec = EvalSpec(
        eval_id=run.run_id,
        run_id=run.run_id,
        created=_time(began).isoformat(timespec="seconds"),
        task=info.name or "seer",
        # In the names of files, Inspect reads an id up to its first dash.
        task_id=run.run_id.replace("-", ""),
        dataset=EvalDataset(name="seer", samples=1, sample_ids=[run.run_id]),
        model=transcript.model,
        config=EvalConfig(epochs=1),
        packages=dict(info.versions),
        metadata={k: v for k, v in run.meta.items() if k not in {"writer", "result", "task"}},
    )
    sample = EvalSample(
        id=run.run_id,
        epoch=1,
        input=info.task,
        target="",
        messages=transcript.messages,
        output=transcript.output or _output_of(transcript.model, info.result or ""),
        scores=None if score is None else {"seer": Score(value=score)},
        events=transcript.in_order(),
        model_usage=usage,
        started_at=_time(began).isoformat(),
        completed_at=_time(ended).isoformat() if ended else None,
        total_time=ended - began if ended else None,
        uuid=run.run_id,
        error=error,
        limit=transcript.limit,
    )
    return EvalLog(
        status=_STATUS[status],
        eval=spec,
        plan=EvalPlan(name="seer"),
        results=_results(score, completed=not failed) if status != "running" else None,
        stats=EvalStats(
            started_at=_time(began).isoformat(),
            completed_at=_time(ended).isoformat() if ended else "",
            model_usage=usage,
        ),
        error=error,
        samples=[sample],
    )


class _Transcript:
    """Seer's events as Inspect's messages and events.

    An answer of the model is one message and one model event, made where the answer begins. A tool
    call is a tool event and a span, which contains what happens during the call.
    """

    def __init__(self, info: RunInfo, events: Sequence[seer_events.Event]) -> None:
        self._run_id = info.run_id
        self.model = info.model or info.provider or "none"
        self.messages: list[ChatMessage] = []
        self.output: ModelOutput | None = None
        self.usage: ModelUsage | None = None
        self.limit: EvalSampleLimit | None = None
        self._began = info.created
        self._events: list[tuple[float, Event]] = []
        self._tools: list[ToolInfo] = []
        self._spans: dict[str, str] = {}
        self._answers: dict[int, list[_Answer]] = {}
        self._results = {
            event.id: event for event in events if isinstance(event, seer_events.ToolResult)
        }
        for event in events:
            if isinstance(event, _Answer):
                self._answers.setdefault(event.turn, []).append(event)
        last = self._began
        for event in events:
            if isinstance(event, _Answer) and event.turn in self._answers:
                self._answer(self._answers.pop(event.turn), asked=last)
            self._take(event)
            last = event.time

    def _take(self, event: seer_events.Event) -> None:
        match event:
            case seer_events.RunStarted():
                self._run_started(event)
            case seer_events.UserMessage():
                self._add_message(ChatMessageUser(content=event.text, source="operator"))
            case seer_events.ToolCall():
                self._tool_call(event)
            case seer_events.ToolResult():
                self._tool_result(event)
            case seer_events.LimitReached():
                self._limit_reached(event)
            case seer_events.ErrorEvent():
                error = _error(f"{event.kind}: {event.message}")
                self._add(event.time, ErrorEvent(error=error))
            case _:
                pass

    def add_calls(self, calls: Iterable[Mapping[str, Any]]) -> None:
        """Put each gate call into the span of the tool call that made it."""
        for number, line in enumerate(calls):
            call = GateCall.from_json(line)
            data = {**call.to_json(), "number": number}
            span = self._spans.get(call.tool_call)
            self._add(call.started, InfoEvent(source="seer.gate", data=data, span_id=span))

    def in_order(self) -> list[Event]:
        """All events by time."""
        return [event for _, event in sorted(self._events, key=lambda item: item[0])]

    def _run_started(self, event: seer_events.RunStarted) -> None:
        self.model = event.model or self.model
        self._tools = [_tool(tool) for tool in event.tools]
        if event.system_prompt:
            self._add_message(ChatMessageSystem(content=event.system_prompt))
        if event.task:
            self._add_message(ChatMessageUser(content=event.task, source="input"))

    def _answer(self, parts: Sequence[_Answer], *, asked: float) -> None:
        content: list[Content] = []
        calls: list[ToolCall] = []
        stop: StopReason | None = None
        used: ModelUsage | None = None
        for part in parts:
            match part:
                case seer_events.Text():
                    content.append(ContentText(text=part.text))
                case seer_events.Thinking():
                    content.append(ContentReasoning(reasoning=part.text))
                case seer_events.ToolCall():
                    calls.append(ToolCall(part.id, part.name, dict(part.arguments)))
                case seer_events.AnswerFinished():
                    stop = _STOPS.get(part.reason, "unknown")
                case seer_events.Usage():
                    used = _sum(used, _usage(part))
        if not content and not calls and stop is None:
            self.usage = _sum(self.usage, used)
            return
        before = list(self.messages)
        message = ChatMessageAssistant(
            content=content, tool_calls=calls or None, model=self.model, source="generate"
        )
        self._add_message(message)
        ended = parts[-1].time
        choice = ChatCompletionChoice(
            message=message, stop_reason=stop or ("tool_calls" if calls else "stop")
        )
        self.output = ModelOutput(
            model=self.model, choices=[choice], usage=used, time=ended - asked
        )
        self.usage = _sum(self.usage, used)
        event = ModelEvent(
            model=self.model,
            input=before,
            tools=self._tools,
            tool_choice="auto",
            config=GenerateConfig(),
            output=self.output,
            completed=_time(ended),
            working_time=ended - asked,
        )
        self._add(asked, event)

    def _tool_call(self, event: seer_events.ToolCall) -> None:
        """The span of the call, and the tool event with the result."""
        result = self._results.get(event.id)
        began = event.time
        ended = result.time if result else None
        span = f"{self._run_id}-tool-{event.seq}"
        self._spans[event.id] = span
        self._add(began, SpanBeginEvent(id=span, name=event.name, type="tool", span_id=span))
        self._add(
            began,
            ToolEvent(
                id=event.id,
                function=event.name,
                arguments=dict(event.arguments),
                result=[_content(block) for block in result.content] if result else "",
                error=_tool_error(result),
                completed=_time(ended) if ended else None,
                working_time=result.seconds if result else None,
            ),
        )
        if ended is not None:
            self._add(ended, SpanEndEvent(id=span, span_id=span))

    def _tool_result(self, event: seer_events.ToolResult) -> None:
        self._add_message(
            ChatMessageTool(
                content=[_content(block) for block in event.content],
                tool_call_id=event.id,
                function=event.name,
                error=_tool_error(event),
            )
        )

    def _limit_reached(self, event: seer_events.LimitReached) -> None:
        kind = _LIMITS.get(event.limit, "custom")
        self.limit = EvalSampleLimit(type=kind, limit=event.allowed, reason=event.message)
        limit = SampleLimitEvent(type=kind, message=event.message, limit=event.allowed)
        self._add(event.time, limit)

    def _add_message(self, message: ChatMessage) -> None:
        # Data frames over many logs use these ids, so the same record must give the same ids.
        message.id = f"{self._run_id}-message-{len(self.messages)}"
        self.messages.append(message)

    def _add(self, when: float, event: Event) -> None:
        event.uuid = f"{self._run_id}-event-{len(self._events)}"
        event.timestamp = _time(when)
        event.working_start = when - self._began
        self._events.append((when, event))


def _usage(event: seer_events.Usage) -> ModelUsage:
    """What one answer used; unlike Seer, Inspect does not count cached tokens as input."""
    read, written = event.cache_read_tokens, event.cache_write_tokens
    return ModelUsage(
        input_tokens=max(event.input_tokens - read - written, 0),
        output_tokens=event.output_tokens,
        total_tokens=event.input_tokens + event.output_tokens,
        input_tokens_cache_read=read or None,
        input_tokens_cache_write=written or None,
        total_cost=event.cost_usd,
    )


def _sum(left: ModelUsage | None, right: ModelUsage | None) -> ModelUsage | None:
    if left is None or right is None:
        return left or right
    return left + right


def _tool(tool: seer_events.ToolInfo) -> ToolInfo:
    schema = tool.input_schema
    properties: Mapping[str, Any] = schema.get("properties") or {}
    return ToolInfo(
        name=tool.name,
        description=tool.description or tool.name,
        parameters=ToolParams(
            properties={name: _parameter(value) for name, value in properties.items()},
            required=schema.get("required") or [],
        ),
    )


def _parameter(schema: Any) -> ToolParam:
    try:
        return ToolParam.model_validate(schema)
    except ValueError:
        # Inspect supports only a part of JSON Schema.
        return ToolParam(description=json.dumps(schema))


def _content(block: seer_events.Block) -> ContentText | ContentImage:
    if isinstance(block, seer_events.ImageBlock):
        data = base64.b64encode(block.data).decode("ascii")
        return ContentImage(image=f"data:{block.mime_type};base64,{data}")
    return ContentText(text=block.text)


def _tool_error(result: seer_events.ToolResult | None) -> ToolCallError | None:
    if result is None:
        return ToolCallError("cancelled", "the run has no result of this call")
    return ToolCallError("unknown", result.text) if result.is_error else None


def _results(score: Any, *, completed: bool) -> EvalResults:
    scores: list[EvalScore] = []
    if isinstance(score, (int, float)):
        metric = EvalMetric(name="score", value=score)
        scores = [
            EvalScore(name="seer", scorer="seer", scored_samples=1, metrics={"score": metric})
        ]
    return EvalResults(total_samples=1, completed_samples=int(completed), scores=scores)


def _output_of(model: str, text: str) -> ModelOutput:
    return ModelOutput.from_content(model, text) if text else ModelOutput(model=model)


def _error(message: str) -> EvalError:
    return EvalError(message=message, traceback="", traceback_ansi="")


def _time(when: float) -> datetime:
    return datetime.fromtimestamp(when, UTC)
