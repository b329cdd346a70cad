"""What ships for tests: doubles that need no account, and suites that every backend must pass.

The suites are modules of their own, because they need pytest or a vendor's SDK:
`seer.testing.provider_contract`, `session_contract`, `agent_contract` and `escapes`.
"""

from seer.testing._hub import LoopbackHub
from seer.testing._interface import LoadedInterface, load_interface
from seer.testing._tiny import make_tiny_model
from seer.testing._vendors import Fault, Reply, Request, ToolUse, VendorEndpoint
from seer.testing._vendors_anthropic import AnthropicEndpoint
from seer.testing._vendors_gemini import GeminiEndpoint
from seer.testing._vendors_openai import OpenAIEndpoint

__all__ = [
    "AnthropicEndpoint",
    "Fault",
    "GeminiEndpoint",
    "LoadedInterface",
    "LoopbackHub",
    "OpenAIEndpoint",
    "Reply",
    "Request",
    "ToolUse",
    "VendorEndpoint",
    "load_interface",
    "make_tiny_model",
]
