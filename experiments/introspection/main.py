"""Does a model notice a concept that is injected into it?

    python main.py [--agent AGENT]

Without an agent, the study in `study.py` runs; with one (`--agent claude`) a real agent works.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from seer import interfaces
from seer.console import say
from seer.environment import ModelConfig
from seer.organisms import base_model
from seer.runs import open_run
from seer.scoring import answer_format, study, verify
from seer.workspace import Library

HERE = Path(__file__).parent
MODEL = ModelConfig(name=str(base_model()), hidden=True)


async def main() -> None:
    """Run the experiment, and check its report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", default=f"scripted:{HERE / 'steps.toml'}")
    arguments = parser.parse_args()
    own = [
        Library.from_file(HERE / "study.py"),
        Library.from_file(HERE.parent / "shared" / "cite.py"),
    ]
    found = await study(
        MODEL,
        interface=interfaces.whitebox,
        task=(HERE / "task.md").read_text() + "\n" + answer_format({"effect": "in words"}),
        provider=arguments.agent,
        libraries=own if arguments.agent.startswith("scripted:") else [],
        workspace_dir=HERE / "workspace",
        name="introspection",
    )
    say(found.said)
    checked = verify(open_run(found.run))
    say(checked)
    say(f"record: {found.run}")
    if not checked.stands:
        sys.exit(f"the report does not stand: see seer verify {found.run.name}")


if __name__ == "__main__":
    asyncio.run(main())
