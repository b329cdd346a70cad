"""The whole machine: an agent works in a Jupyter notebook that has a model in it.

    python main.py [--agent AGENT] [--model NAME] [--gpu GPU]

Without an agent, a scripted one follows `steps.toml`. The default model is a small real one that
needs no download.
"""

import argparse
import asyncio
from pathlib import Path

from seer.console import say
from seer.environment import ExecutionMode, ModelConfig, Sandbox, SandboxConfig
from seer.execution import create_notebook_session
from seer.harness import Text, ToolResult, run_agent
from seer.organisms import base_model
from seer.workspace import Workspace

HERE = Path(__file__).parent


async def main() -> None:
    """Run the agent in a notebook."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", default=f"scripted:{HERE / 'steps.toml'}")
    parser.add_argument("--model", default=None)
    parser.add_argument("--gpu", default=None)
    arguments = parser.parse_args()
    config = SandboxConfig(
        gpu=arguments.gpu,
        execution_mode=ExecutionMode.NOTEBOOK,
        models=[ModelConfig(name=arguments.model or str(base_model()))],
        env={"OMP_NUM_THREADS": "1"},  # enough for a small model
    )
    with Sandbox(config) as sandbox:
        session = create_notebook_session(
            sandbox, Workspace(), name="sandbox-intro", notebook_dir=HERE / "workspace"
        )
        async for event in run_agent(
            task=(HERE / "task.md").read_text(),
            session=session,
            provider=arguments.agent,
            show=False,  # this program prints the events itself
        ):
            if isinstance(event, Text):
                say(event.text)
            elif isinstance(event, ToolResult) and event.is_error:
                say(event)
        session.close()


if __name__ == "__main__":
    asyncio.run(main())
