"""`seer.harness`, with the original's spellings of `run_agent` and `run_agent_interactive`."""

import seer.harness
from seer.harness import *  # noqa: F403
from src.harness.agent import Provider, run_agent
from src.harness.interactive import run_agent_interactive

__all__ = [*seer.harness.__all__, "Provider"]  # pyright: ignore[reportUnsupportedDunderAll]
_ = Provider, run_agent, run_agent_interactive
