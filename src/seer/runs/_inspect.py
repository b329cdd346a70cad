"""Export of a run as a log of Inspect, for `inspect view` and all that reads Inspect's logs.

Written by hand in Inspect's JSON format, because the `inspect_ai` package is large and would be
needed only here; the tests read the result back with it. One run is one log with one sample.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seer.runs._reader import Run

_STATUS = {
    "running": "started",
    "completed": "success",
    "limit": "success",
    "cancelled": "cancelled",
    "error": "error",
    "crashed": "error",
}
_LIMITS = {
    "turns": "turn",
    "tool_calls": "custom",
    "seconds": "time",
    "tokens": "token",
    "cost_usd": "cost",
    "stop": "operator",
}


def export_inspect(run: Run, target: Path) -> Path:
    """Write a run as a log of Inspect.

    Args:
        run: The run; it may still be running.
        target: A folder, which then gets a file named as Inspect names them, or a file.

    Returns:
        The file that was written.
    """
    log = _log(run)
    if target.is_dir() or not target.suffix:
        target.mkdir(parents=True, exist_ok=True)
        stamp = log["eval"]["created"].replace(":", "-")
        target = target / f"{stamp}_seer_{run.run_id}.json"
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(log, ensure_ascii=True), encoding="utf-8")
    part.replace(target)
    return target


def _log(run: Run) -> dict[str, Any]:
    meta = run.meta
    status = run.status
    transcript = _Transcript(str(meta.get("model") or meta.get("provider") or "none"))
    for event in run.events():
        transcript.add(event)
    for number, call in enumerate(run.calls()):
        transcript.gate_call(number, call)
    usage = {transcript.model: transcript.usage} if transcript.usage else {}
    began, ended = meta["created"], meta.get("ended")
    error = _error(meta.get("message") or status) if _STATUS[status] == "error" else None
    return {
        "version": 2,
        "status": _STATUS[status],
        "eval": _spec(run, meta, transcript.model),
        "plan": {"name": "seer", "steps": [], "config": {}},
        "results": _results(meta),
        "stats": {
            "started_at": _time(began),
            "completed_at": _time(ended) if ended else "",
            "model_usage": usage,
        },
        "error": error,
        "samples": [_sample(run, meta, transcript, usage=usage, error=error)],
    }


def _spec(run: Run, meta: Mapping[str, Any], model: str) -> dict[str, Any]:
    return {
        "eval_id": run.run_id,
        "run_id": run.run_id,
        "created": _time(meta["created"]),
        "task": meta.get("name") or "seer",
        "task_id": run.run_id,
        "dataset": {"name": "seer", "samples": 1, "sample_ids": [run.run_id]},
        "model": model,
        "config": {"epochs": 1},
        "packages": meta.get("versions") or {},
        "metadata": {
            key: value for key, value in meta.items() if key not in {"writer", "result", "task"}
        },
    }


def _sample(
    run: Run,
    meta: Mapping[str, Any],
    transcript: "_Transcript",
    *,
    usage: dict[str, Any],
    error: dict[str, Any] | None,
) -> dict[str, Any]:
    began, ended = meta["created"], meta.get("ended")
    final = {
        "model": transcript.model,
        "choices": [
            {
                "message": {"role": "assistant", "content": meta.get("result") or ""},
                "stop_reason": "stop",
            }
        ],
    }
    score = meta.get("score")
    return {
        "id": run.run_id,
        "epoch": 1,
        "input": meta.get("task") or "",
        "target": "",
        "messages": transcript.messages,
        "output": final,
        "scores": None if score is None else {"seer": {"value": score}},
        "events": transcript.events,
        "model_usage": usage,
        "started_at": _time(began),
        "completed_at": _time(ended) if ended else None,
        "total_time": ended - began if ended else None,
        "uuid": run.run_id,
        "error": error,
        "limit": transcript.limit,
    }


class _Transcript:
    """Seer's events as Inspect's messages and events."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.messages: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.usage: dict[str, Any] = {}
        self.limit: dict[str, Any] | None = None
        self._tools: list[dict[str, Any]] = []
        self._answer: dict[str, Any] | None = None
        self._turn = -1
        self._shown = 0
        self._calls: dict[str, dict[str, Any]] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        handler = getattr(self, f"_{kind}", None)
        if kind in {"text", "thinking", "tool_call"} and event["turn"] != self._turn:
            self._begin(event)
        if handler is not None:
            handler(event)

    def gate_call(self, number: int, call: Mapping[str, Any]) -> None:
        when = float(call.get("time") or 0.0)
        data = {**call, "number": number}
        self._event("info", when, source="seer.gate", data=data)

    def _run_started(self, event: Mapping[str, Any]) -> None:
        if event["system_prompt"]:
            self.messages.append({"role": "system", "content": event["system_prompt"]})
        if event["task"]:
            self.messages.append({"role": "user", "content": event["task"], "source": "input"})
        self.model = event.get("model") or self.model
        self._tools = [_tool(tool) for tool in event["tools"]]

    def _user_message(self, event: Mapping[str, Any]) -> None:
        self.messages.append({"role": "user", "content": event["text"], "source": "operator"})

    def _begin(self, event: Mapping[str, Any]) -> None:
        """A new answer of the model: one message, and one model event that shows it."""
        self._turn = event["turn"]
        new = self.messages[self._shown :]
        self._answer = {"role": "assistant", "content": [], "tool_calls": [], "model": self.model}
        self.messages.append(self._answer)
        self._shown = len(self.messages)
        self._event(
            "model",
            event["time"],
            model=self.model,
            input=new,
            tools=self._tools,
            tool_choice="auto",
            config={},
            output={
                "model": self.model,
                "choices": [{"message": self._answer, "stop_reason": "stop"}],
            },
        )

    def _text(self, event: Mapping[str, Any]) -> None:
        assert self._answer is not None
        self._answer["content"].append({"type": "text", "text": event["text"]})

    def _thinking(self, event: Mapping[str, Any]) -> None:
        assert self._answer is not None
        self._answer["content"].append({"type": "reasoning", "reasoning": event["text"]})

    def _tool_call(self, event: Mapping[str, Any]) -> None:
        assert self._answer is not None
        call = {"id": event["id"], "function": event["name"], "arguments": event["arguments"]}
        self._answer["tool_calls"].append({**call, "type": "function"})
        self._calls[event["id"]] = {**call, "time": event["time"]}

    def _tool_result(self, event: Mapping[str, Any]) -> None:
        content = [_content(block) for block in event["content"]]
        text = "\n".join(part["text"] for part in content if part["type"] == "text")
        error = {"type": "unknown", "message": text} if event["is_error"] else None
        message = {"role": "tool", "tool_call_id": event["id"], "function": event["name"]}
        self.messages.append({**message, "content": content, "error": error})
        call = self._calls.pop(event["id"], None)
        self._event(
            "tool",
            call["time"] if call else event["time"],
            type="function",
            id=event["id"],
            function=event["name"],
            arguments=call["arguments"] if call else {},
            result=content,
            error=error,
            completed=_time(event["time"]),
            working_time=event.get("seconds"),
        )

    def _usage(self, event: Mapping[str, Any]) -> None:
        names = {
            "input_tokens": "input_tokens",
            "output_tokens": "output_tokens",
            "cache_write_tokens": "input_tokens_cache_write",
            "cache_read_tokens": "input_tokens_cache_read",
        }
        for ours, theirs in names.items():
            self.usage[theirs] = self.usage.get(theirs, 0) + event[ours]
        self.usage["total_tokens"] = event["total_tokens"]
        self.usage["total_cost"] = event["total_cost_usd"]

    def _limit_reached(self, event: Mapping[str, Any]) -> None:
        self.limit = {"type": _LIMITS.get(event["limit"], "custom"), "limit": event["allowed"]}
        self._event("info", event["time"], source="seer.limit", data=event["message"])

    def _error(self, event: Mapping[str, Any]) -> None:
        self._event("error", event["time"], error=_error(f"{event['kind']}: {event['message']}"))

    def _event(self, kind: str, when: float, **fields: Any) -> None:
        number = len(self.events)
        common = {"event": kind, "uuid": f"event-{number}", "timestamp": _time(when)}
        self.events.append({**common, "working_start": 0.0, **fields})


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema: Mapping[str, Any] = tool.get("input_schema") or {}
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": schema.get("properties") or {},
        "required": schema.get("required") or [],
        "additionalProperties": False,
    }
    return {
        "name": tool["name"],
        "description": tool.get("description") or tool["name"],
        "parameters": parameters,
    }


def _content(block: Mapping[str, Any]) -> dict[str, Any]:
    if block["type"] == "image":
        return {"type": "image", "image": f"data:{block['mime_type']};base64,{block['data']}"}
    return {"type": "text", "text": block["text"]}


def _results(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    score = meta.get("score")
    if not isinstance(score, (int, float)):
        return None
    metric = {"name": "score", "value": score}
    return {
        "total_samples": 1,
        "completed_samples": 1,
        "scores": [{"name": "seer", "scorer": "seer", "metrics": {"score": metric}}],
    }


def _error(message: str) -> dict[str, Any]:
    return {"message": message, "traceback": "", "traceback_ansi": ""}


def _time(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
