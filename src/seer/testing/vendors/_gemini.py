"""Gemini's generateContent endpoint, with and without streaming."""

import json
import re
from collections.abc import Iterator
from typing import Any

from seer.testing.vendors._endpoint import Fault, Reply, Request, VendorEndpoint

_ASKS = re.compile(r"/models/[^/]+:(generateContent|streamGenerateContent)$")
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


class GeminiEndpoint(VendorEndpoint):
    """`POST .../models/MODEL:generateContent` from a script."""

    def asks_model(self, request: Request) -> bool:
        """Whether this is a request to generate, streamed or not."""
        return _ASKS.search(request.path.split("?")[0]) is not None

    def render(self, request: Request, reply: Reply) -> tuple[str, Iterator[bytes]]:
        """Server-sent events if the client asks for them, else one object."""
        parts: list[dict[str, Any]] = []
        if reply.thinking is not None:
            parts.append({"text": reply.thinking, "thought": True})
        for text in (reply.text, reply.refusal):
            if text is not None:
                parts.append({"text": text})
        for tool in reply.tools:
            parts.append({"functionCall": {"name": tool.name, "args": dict(tool.arguments)}})
        answer: dict[str, Any] = {
            "candidates": [
                {
                    "content": {"role": "model", "parts": parts},
                    **({} if reply.finish == "" else {"finishReason": reply.finish or "STOP"}),
                    "index": 0,
                }
            ],
            "usageMetadata": {
                "promptTokenCount": reply.input_tokens,
                "cachedContentTokenCount": reply.cached_tokens,
                "candidatesTokenCount": reply.output_tokens,
                "totalTokenCount": reply.input_tokens + reply.output_tokens,
            },
            "modelVersion": "scripted",
            "responseId": f"response-{len(self.requests)}",
        }
        data = json.dumps(answer).encode()
        if "streamGenerateContent" in request.path:
            return "text/event-stream", iter([b"data: " + data + b"\r\n\r\n"])
        return "application/json", iter([data])

    def render_error(self, fault: Fault) -> Any:
        """An error in the form of the API."""
        name = fault.code or _STATUS.get(fault.status, "INTERNAL")
        return {"error": {"code": fault.status, "message": fault.message, "status": name}}
