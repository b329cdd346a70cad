"""Helpers for tests of your own interfaces, agents, sessions and providers.

`load_interface` and `make_tiny_model` are for interfaces. The endpoints answer as the vendors' APIs
do, from a script, and are for agents. Providers, sessions and agents each have a contract suite:
`seer.testing.provider_contract`, `session_contract` and `agent_contract`. These are modules of
their own, because they need pytest. Machines belong to Seer's background loop: `run_sync` and
`on_loop` run their coroutines there, from blocking code and from a test's own loop.
"""

from seer._sync import on_loop, run_sync
from seer.testing._interface import LoadedInterface, load_interface
from seer.testing._tiny_model import make_tiny_model
from seer.testing.vendors import (
    AnthropicEndpoint,
    Fault,
    GeminiEndpoint,
    OpenAIEndpoint,
    Reply,
    Request,
    ToolUse,
    VendorEndpoint,
)

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
    "on_loop",
    "run_sync",
]
