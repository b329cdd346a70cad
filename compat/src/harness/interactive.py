"""`run_agent_interactive` as the original spells it."""

from collections.abc import Mapping
from typing import Any

import seer.harness
from seer.harness import Agent, RunFinished
from src.harness.agent import agent_options


async def run_agent_interactive(
    prompt: str | None = None,
    mcp_config: Mapping[str, Any] | None = None,
    provider: str | Agent = "claude",
    model: str | None = None,
    user_message: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    enable_logging: bool | None = None,
    **options: Any,
) -> RunFinished | None:
    """As in `seer.harness`, with the original's arguments."""
    return await seer.harness.run_agent_interactive(
        prompt,
        mcp_config,
        **agent_options(provider, model, user_message, kwargs, enable_logging),
        **options,
    )
