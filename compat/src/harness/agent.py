"""`run_agent` as the original spells it."""

from collections.abc import Mapping
from typing import Any

import seer.harness
from seer.harness import Agent, AgentRun, Limits
from src._old import without_meaning

Provider = Agent


def run_agent(
    prompt: str | None = None,
    mcp_config: Mapping[str, Any] | None = None,
    provider: str | Agent = "claude",
    model: str | None = None,
    user_message: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    enable_logging: bool | None = None,
    **options: Any,
) -> AgentRun:
    """As in `seer.harness`, with the original's arguments."""
    return seer.harness.run_agent(
        prompt,
        mcp_config,
        **agent_options(provider, model, user_message, kwargs, enable_logging),
        **options,
    )


def agent_options(
    provider: str | Agent,
    model: str | None,
    user_message: str | None,
    kwargs: Mapping[str, Any] | None,
    enable_logging: bool | None,
) -> dict[str, Any]:
    """The options of `seer.harness.run_agent` for the original's arguments."""
    given = dict(kwargs or {})
    options: dict[str, Any] = {"provider": provider, "model": given.pop("model", model)}
    # In the original, an empty message meant no message.
    options["user_message"] = user_message or None
    if enable_logging is not None:
        options["record"] = enable_logging
    if "max_turns" in given:
        options["limits"] = Limits(turns=given.pop("max_turns"))
    without_meaning("run_agent(kwargs=)", given)
    return options
