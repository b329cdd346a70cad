"""For tests of your own interfaces, agents, sessions and providers.

Interfaces: `load_interface` and `make_tiny_model`. Agents: endpoints on loopback that speak the
vendors' protocols. Each kind of backend has a contract suite that it must pass, in a module of its
own because it needs pytest: `seer.testing.provider_contract`, `session_contract`, `agent_contract`.
"""

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
    "OpenAIEndpoint",
    "Reply",
    "Request",
    "ToolUse",
    "VendorEndpoint",
    "load_interface",
    "make_tiny_model",
]
