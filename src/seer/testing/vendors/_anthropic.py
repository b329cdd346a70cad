"""Anthropic's Messages endpoint, with and without streaming."""

import json
from collections.abc import Iterator
from typing import Any

from seer.testing.vendors._endpoint import Fault, Reply, Request, VendorEndpoint

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class AnthropicEndpoint(VendorEndpoint):
    """`POST /v1/messages` from a script."""

    def asks_model(self, request: Request) -> bool:
        """Whether this is a request for a message; the CLI also asks to count tokens."""
        return request.method == "POST" and request.path.split("?")[0] == "/v1/messages"

    def other(self, request: Request) -> Any:
        """The answer to a request to count tokens."""
        return {"input_tokens": 10}

    def render(self, request: Request, reply: Reply) -> tuple[str, Iterator[bytes]]:
        """Server-sent events if the client asks for them, else one message."""
        blocks = _blocks(reply, len(self.requests))
        message: dict[str, Any] = {
            "id": f"msg_{len(self.requests):04d}",
            "type": "message",
            "role": "assistant",
            "model": request.body.get("model", "scripted"),
            "content": blocks,
            "stop_reason": ("tool_use" if reply.tools else "end_turn")
            if reply.finish is None
            else reply.finish or None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": reply.input_tokens - reply.cached_tokens,
                "cache_read_input_tokens": reply.cached_tokens,
                "output_tokens": reply.output_tokens,
            },
        }
        if not request.body.get("stream"):
            return "application/json", iter([json.dumps(message).encode()])
        return "text/event-stream", _stream(message)

    def render_error(self, fault: Fault) -> Any:
        """An error in the form of the API."""
        kind = fault.code or _ERRORS.get(fault.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": fault.message}}

    def render_break(self, fault: Fault) -> bytes:
        """An `error` event."""
        return _event("error", self.render_error(fault))


def _blocks(reply: Reply, number: int) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.thinking is not None:
        blocks.append({"type": "thinking", "thinking": reply.thinking, "signature": "c2lnbmVk"})
    for text in (reply.text, reply.refusal):
        if text is not None:
            blocks.append({"type": "text", "text": text})
    for index, tool in enumerate(reply.tools):
        blocks.append(
            {
                "type": "tool_use",
                "id": f"toolu_{number:04d}_{index}",
                "name": tool.name,
                "input": dict(tool.arguments),
            }
        )
    return blocks


def _stream(message: dict[str, Any]) -> Iterator[bytes]:
    blocks = message["content"]
    usage = message["usage"]
    start: dict[str, Any] = {**message, "content": [], "stop_reason": None}
    start["usage"] = {**usage, "output_tokens": 1}
    yield _event("message_start", {"message": start})
    for index, block in enumerate(blocks):
        empty, deltas = _pieces(block)
        yield _event("content_block_start", {"index": index, "content_block": empty})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    if message["stop_reason"] is None:
        return
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event(
        "message_delta", {"delta": end, "usage": {"output_tokens": usage["output_tokens"]}}
    )
    yield _event("message_stop", {})


def _pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if block["type"] == "text":
        half = len(block["text"]) // 2
        parts = [block["text"][:half], block["text"][half:]]
        deltas = [{"type": "text_delta", "text": part} for part in parts if part]
        return {"type": "text", "text": ""}, deltas
    if block["type"] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    return {**block, "input": {}}, [delta]


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
