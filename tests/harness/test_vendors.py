"""Every vendor's agent passes the contract, with its real SDK and a scripted endpoint."""

from collections.abc import Sequence
from typing import Any

import pytest

from seer.testing import AnthropicEndpoint, GeminiEndpoint, OpenAIEndpoint, VendorEndpoint
from seer.testing.agent_contract import AgentContract
from seer.testing.vendors import ScriptItem

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's own keys and this shell's variables."""
    for name in ("IS_SANDBOX", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    # Fewer tries than in real use, because each doubles the wait.
    monkeypatch.setenv("SEER_AGENT_RETRIES", "2")


class TestClaude(AgentContract):
    def endpoint(self, script: Sequence[ScriptItem]) -> VendorEndpoint:
        return AnthropicEndpoint(script)

    def arguments(self, endpoint: VendorEndpoint) -> dict[str, Any]:
        return {"provider": "claude", "base_url": endpoint.url}

    def wire_name(self, tool: str) -> str:
        return f"mcp__lab__{tool}"


class TestOpenAIChat(AgentContract):
    def endpoint(self, script: Sequence[ScriptItem]) -> VendorEndpoint:
        return OpenAIEndpoint(script)

    def arguments(self, endpoint: VendorEndpoint) -> dict[str, Any]:
        return {"provider": "openai", "base_url": endpoint.url, "model": "scripted"}


class TestOpenAIResponses(TestOpenAIChat):
    def arguments(self, endpoint: VendorEndpoint) -> dict[str, Any]:
        return {"provider": "openai:responses", "base_url": endpoint.url, "model": "scripted"}


class TestGemini(AgentContract):
    def endpoint(self, script: Sequence[ScriptItem]) -> VendorEndpoint:
        return GeminiEndpoint(script)

    def arguments(self, endpoint: VendorEndpoint) -> dict[str, Any]:
        return {"provider": "gemini", "base_url": endpoint.url, "model": "gemini-3.8-flash"}
