"""Is a refusal one direction? Find it, remove it, compare with random ones.

    python main.py [--agent AGENT]

Without an agent, the study in `study.py` runs; with one (`--agent claude`) a real agent works.
"""

import argparse
import asyncio
from pathlib import Path

from seer import interfaces
from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
from seer.execution import create_local_session
from seer.harness import Text, ToolResult, run_agent
from seer.organisms import base_model, organism
from seer.runs import open_run
from seer.scoring import answer_format, verify
from seer.workspace import Library, Workspace

HERE = Path(__file__).parent
MODEL = ModelConfig(
    name=str(organism("secret").path), is_peft=True, base_model=str(base_model()), hidden=True
)


async def main() -> None:
    """Run the experiment, and check what it reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", default=f"scripted:{HERE / 'steps.toml'}")
    arguments = parser.parse_args()
    study = [
        Library.from_file(HERE / "study.py"),
        Library.from_file(HERE.parent / "shared" / "cite.py"),
    ]
    config = SandboxConfig(
        gpu=None,
        provider="local",
        models=[MODEL],
        python_packages=["torch", "transformers", "peft", "nnsight", "scikit-learn"],
        # The model is small: more threads wait for each other longer than they compute.
        env={"OMP_NUM_THREADS": "1"},
    )
    with ScopedSandbox(config) as scoped:
        tools = scoped.serve(str(interfaces.whitebox), expose_as="library", name="tools")
        given = study if arguments.agent.startswith("scripted:") else []
        session = create_local_session(
            workspace=Workspace(libraries=[tools, *given]),
            workspace_dir=str(HERE / "workspace"),
        )
        run = run_agent(
            task=(HERE / "task.md").read_text() + "\n" + answer_format({"effect": "in words"}),
            session=session,
            provider=arguments.agent,
            name="steering",
        )
        async for event in run:
            if isinstance(event, Text):
                print(event.text)
            elif isinstance(event, ToolResult) and event.is_error:
                print(event)
        session.close()
    checked = verify(open_run(run.folder))
    for claim in checked.claims:
        print("claim:", claim.claim.text, "|", "stands" if claim.stands else claim.problems)
    print("flags:", [f"{flag.name}: {flag.reason}" for flag in checked.flags])
    print("record:", run.folder)


if __name__ == "__main__":
    asyncio.run(main())
