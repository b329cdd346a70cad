"""Google's Gemini models."""

from typing import TYPE_CHECKING, Any

from seer.harness._agent import AgentRequest
from seer.harness.agents._pydantic_ai import PydanticAIAgent

if TYPE_CHECKING:
    from pydantic_ai.models import Model

DEFAULT_MODEL = "gemini-3.8-flash"


class GeminiAgent(PydanticAIAgent):
    """The provider `gemini`."""

    name = "gemini"
    keys = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    extra = "gemini"
    modules = ("google.genai",)
    vendor = "google"

    def default_model(self, request: AgentRequest) -> str:
        """A current model."""
        return DEFAULT_MODEL

    def open_model(self, request: AgentRequest, key: str | None, http: Any) -> "Model[Any]":
        """The model over Google's API."""
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        provider = GoogleProvider(api_key=key, http_client=http, base_url=request.base_url)
        return GoogleModel(self.model_name(request), provider=provider)
