"""Vendors' endpoints on loopback that answer from a script.

A vendor's real SDK talks to them, so a test needs no key and no internet. `_endpoint` has the
script and the server; each vendor has a module for its wire format.
"""

from seer.testing.vendors._anthropic import AnthropicEndpoint
from seer.testing.vendors._endpoint import (
    Fault,
    Reply,
    Request,
    ScriptItem,
    ToolUse,
    VendorEndpoint,
)
from seer.testing.vendors._gemini import GeminiEndpoint
from seer.testing.vendors._openai import OpenAIEndpoint

__all__ = [
    "AnthropicEndpoint",
    "Fault",
    "GeminiEndpoint",
    "OpenAIEndpoint",
    "Reply",
    "Request",
    "ScriptItem",
    "ToolUse",
    "VendorEndpoint",
]
