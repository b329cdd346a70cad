"""OpenAI's models, and every endpoint that speaks its protocol (vLLM, Ollama, llama.cpp, ...).

OpenAI itself is used through its responses endpoint, others through chat completions;
`provider="openai:chat"` and `"openai:responses"` choose one.
"""

import os
from typing import TYPE_CHECKING, Any, Literal, Self

from seer.errors import ConfigError
from seer.harness._agent import AgentRequest
from seer.harness.agents._pydantic_ai import PydanticAIAgent

if TYPE_CHECKING:
    from pydantic_ai.models import Model

DEFAULT_MODEL = "gpt-5.5"


class OpenAIAgent(PydanticAIAgent):
    """The provider `openai`."""

    name = "openai"
    keys = ("OPENAI_API_KEY",)
    extra = "openai"
    modules = ("openai",)
    vendor = "openai"

    def __init__(self, api: Literal["auto", "chat", "responses"] = "auto") -> None:
        self._api = api

    @classmethod
    def from_argument(cls, api: str) -> Self:
        """Choose the endpoint.

        Raises:
            ConfigError: It is neither `chat` nor `responses`.
        """
        if api not in {"chat", "responses"}:
            raise ConfigError("provider", f"openai:{api}", "use openai:chat or openai:responses")
        return cls(api)  # type: ignore[arg-type]

    def default_model(self, request: AgentRequest) -> str:
        """OpenAI's own default; other endpoints have none."""
        if _base_url(request) is not None:
            raise ConfigError("model", None, "your endpoint has no default model; give model=...")
        return DEFAULT_MODEL

    def needs_key(self, request: AgentRequest) -> bool:
        """False for the user's own endpoint, which often needs no key."""
        return _base_url(request) is None

    def open_model(self, request: AgentRequest, key: str | None, http: Any) -> "Model[Any]":
        """The model over the chosen endpoint."""
        from openai import AsyncOpenAI
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        url = _base_url(request)
        client = AsyncOpenAI(base_url=url, api_key=key or "none", max_retries=0, http_client=http)
        provider = OpenAIProvider(openai_client=client)
        chat = self._api == "chat" or (self._api == "auto" and url is not None)
        kind = OpenAIChatModel if chat else OpenAIResponsesModel
        return kind(self.model_name(request), provider=provider)


def _base_url(request: AgentRequest) -> str | None:
    return request.base_url or os.environ.get("OPENAI_BASE_URL") or None
