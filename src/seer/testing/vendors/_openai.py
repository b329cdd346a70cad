"""OpenAI's chat-completions and responses endpoints, with and without streaming."""

import json
import time
from collections.abc import Iterator
from typing import Any

from seer.testing.vendors._endpoint import Fault, Reply, Request, VendorEndpoint


class OpenAIEndpoint(VendorEndpoint):
    """`POST /v1/chat/completions` and `POST /v1/responses` from a script."""

    prefix = "/v1"

    def asks_model(self, request: Request) -> bool:
        """Whether this is a request to one of the two endpoints."""
        return request.path.split("?")[0] in {"/v1/chat/completions", "/v1/responses"}

    def other(self, request: Request) -> Any:
        """A list of models, which some clients request."""
        return {"object": "list", "data": [{"id": "scripted", "object": "model"}]}

    def render(self, request: Request, reply: Reply) -> tuple[str, Iterator[bytes]]:
        """The answer in the form of the requested endpoint."""
        number = len(self.requests)
        model = request.body.get("model", "scripted")
        if request.path.startswith("/v1/responses"):
            whole = _response(reply, number, model)
            pieces = _response_stream(whole)
        else:
            whole = _completion(reply, number, model)
            pieces = _completion_stream(whole)
        if request.body.get("stream"):
            return "text/event-stream", pieces
        return "application/json", iter([json.dumps(whole).encode()])

    def render_error(self, fault: Fault) -> Any:
        """An error in the form of the API."""
        codes = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
        kind = "server_error" if fault.status >= 500 else "invalid_request_error"
        code = fault.code or codes.get(fault.status)
        return {"error": {"message": fault.message, "type": fault.code or kind, "code": code}}


def _completion(reply: Reply, number: int, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.refusal is not None:
        message["refusal"] = reply.refusal
    if reply.thinking is not None:
        message["reasoning_content"] = reply.thinking
    if reply.tools:
        message["tool_calls"] = [
            {
                "index": index,
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": tool.name, "arguments": json.dumps(dict(tool.arguments))},
            }
            for index, tool in enumerate(reply.tools)
        ]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": ("tool_calls" if reply.tools else "stop")
                if reply.finish is None
                else reply.finish or None,
            }
        ],
        "usage": {
            "prompt_tokens": reply.input_tokens,
            "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
            "completion_tokens": reply.output_tokens,
            "total_tokens": reply.input_tokens + reply.output_tokens,
        },
    }


def _completion_stream(whole: dict[str, Any]) -> Iterator[bytes]:
    choice = whole["choices"][0]
    base = {key: whole[key] for key in ("id", "created", "model")}
    base["object"] = "chat.completion.chunk"
    yield _data({**base, "choices": [_delta(choice["message"], None)]})
    if choice["finish_reason"] is None:
        return
    yield _data({**base, "choices": [_delta({}, choice["finish_reason"])]})
    yield _data({**base, "choices": [], "usage": whole["usage"]})
    yield b"data: [DONE]\n\n"


def _delta(message: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": message, "finish_reason": finish}


def _response(reply: Reply, number: int, model: str) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if reply.thinking is not None:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        output.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    said: list[dict[str, Any]] = []
    if reply.text is not None:
        said.append({"type": "output_text", "text": reply.text, "annotations": []})
    if reply.refusal is not None:
        said.append({"type": "refusal", "refusal": reply.refusal})
    if said:
        output.append(
            {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": "completed",
                "content": said,
            }
        )
    for index, tool in enumerate(reply.tools):
        output.append(
            {
                "type": "function_call",
                "id": f"fc_{number}_{index}",
                "call_id": f"call_{number}_{index}",
                "name": tool.name,
                "arguments": json.dumps(dict(tool.arguments)),
                "status": "completed",
            }
        )
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        **_status(reply),
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": reply.input_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.input_tokens + reply.output_tokens,
        },
    }


def _response_stream(whole: dict[str, Any]) -> Iterator[bytes]:
    events: list[dict[str, Any]] = []
    start: dict[str, Any] = {**whole, "status": "in_progress", "output": [], "usage": None}
    events.append({"type": "response.created", "response": start})
    for index, item in enumerate(whole["output"]):
        events.extend(_item_events(item, index))
    if whole["status"] != "in_progress":
        events.append({"type": f"response.{whole['status']}", "response": whole})
    for number, event in enumerate(events):
        text = json.dumps({**event, "sequence_number": number})
        yield f"event: {event['type']}\ndata: {text}\n\n".encode()


def _item_events(item: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    where = {"output_index": index, "item_id": item["id"]}
    if item["type"] == "message":
        yield _added({**item, "content": [], "status": "in_progress"}, index)
        for number, part in enumerate(item["content"]):
            yield from _part_events(part, {**where, "content_index": number})
    elif item["type"] == "function_call":
        yield _added({**item, "arguments": "", "status": "in_progress"}, index)
        arguments = item["arguments"]
        yield {"type": "response.function_call_arguments.delta", **where, "delta": arguments}
        yield {
            "type": "response.function_call_arguments.done",
            **where,
            "name": item["name"],
            "arguments": arguments,
        }
    else:
        yield _added({**item, "summary": []}, index)
        spot = {**where, "summary_index": 0}
        part = item["summary"][0]
        yield {
            "type": "response.reasoning_summary_part.added",
            **spot,
            "part": {**part, "text": ""},
        }
        yield {"type": "response.reasoning_summary_text.delta", **spot, "delta": part["text"]}
        yield {"type": "response.reasoning_summary_text.done", **spot, "text": part["text"]}
        yield {"type": "response.reasoning_summary_part.done", **spot, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part_events(part: dict[str, Any], spot: dict[str, Any]) -> Iterator[dict[str, Any]]:
    refused = part["type"] == "refusal"
    key, kind = ("refusal", "refusal") if refused else ("text", "output_text")
    more: dict[str, Any] = {} if refused else {"logprobs": []}
    yield {"type": "response.content_part.added", **spot, "part": {**part, key: ""}}
    yield {"type": f"response.{kind}.delta", **spot, "delta": part[key], **more}
    yield {"type": f"response.{kind}.done", **spot, key: part[key], **more}
    yield {"type": "response.content_part.done", **spot, "part": part}


def _status(reply: Reply) -> dict[str, Any]:
    """The status of a response; `finish` is the reason why it is incomplete."""
    if reply.finish is None:
        return {"status": "completed"}
    if not reply.finish:
        return {"status": "in_progress"}
    return {"status": "incomplete", "incomplete_details": {"reason": reply.finish}}


def _added(item: dict[str, Any], index: int) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _data(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
