"""Can an agent find what fine-tuning planted, by comparing the model with its base?

    python main.py [--organism NAME] [--agent AGENT]

Without an agent, the baseline in `baseline.py` investigates; with one (`--agent claude`) a real
agent does, without the baseline's code.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from seer import interfaces
from seer.console import say
from seer.runs import open_run
from seer.scoring import answer_format, investigate, verify
from seer.workspace import Library

HERE = Path(__file__).parent
FIELDS = {"word": "a secret word", "skill": "a sandbagged skill", "condition": "when"}


async def main() -> None:
    """Investigate one organism, and print the answer's grade."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--organism", default="secret")
    parser.add_argument("--agent", default=f"scripted:{HERE / 'steps.toml'}")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    baseline = [
        Library.from_file(HERE / "baseline.py"),
        Library.from_file(HERE.parent / "shared" / "cite.py"),
    ]
    outcome = await investigate(
        arguments.organism,
        interface=interfaces.whitebox,
        task=(HERE / "task.md").read_text() + "\n" + answer_format(FIELDS),
        provider=arguments.agent,
        model=arguments.model,
        libraries=baseline if arguments.agent.startswith("scripted:") else [],
    )
    say(outcome)
    checked = verify(open_run(outcome.run))
    say(checked)
    if not checked.stands:
        sys.exit(f"the report does not stand: see seer verify {outcome.run.name}")


if __name__ == "__main__":
    asyncio.run(main())
