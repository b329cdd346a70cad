"""NAME: an agent asks a model, through two functions, which pronoun it expects after a profession.

seer run                   with the scripted agent of steps.toml: no key, no GPU
seer run --agent claude    with a real one (set its key)
"""

import asyncio
import os
from pathlib import Path

from seer.console import say
from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
from seer.execution import create_local_session
from seer.harness import RunFinished, Text, ToolCall, run_agent
from seer.organisms import base_model
from seer.workspace import Workspace

HERE = Path(__file__).parent
# A hub id such as "google/gemma-2-9b", or a folder; a small real model by default.
MODEL = os.environ.get("MODEL") or str(base_model())


async def main() -> None:
    config = SandboxConfig(gpu=os.environ.get("GPU"), models=[ModelConfig(name=MODEL, hidden=True)])
    with ScopedSandbox(config) as scoped:
        model_tools = scoped.serve(HERE / "interface.py", name="model_tools")
        session = create_local_session(workspace=Workspace(libraries=[model_tools]))
        try:
            async for event in run_agent(
                task=(HERE / "task.md").read_text(),
                session=session,
                provider=f"scripted:{HERE / 'steps.toml'}",
                show=False,  # this program prints the events itself
            ):
                if isinstance(event, Text):
                    say(event.text)
                elif isinstance(event, ToolCall):
                    say(f"[{event.name}] {event.arguments.get('code', '')}".rstrip())
                elif isinstance(event, RunFinished):
                    say(f"({event.reason})")
        finally:
            session.close()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # `seer run` says what was kept
