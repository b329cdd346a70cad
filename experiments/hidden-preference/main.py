"""Can an agent find what a model prefers or assumes, and denies?

    python main.py [--organism NAME] [--tools whitebox|blackbox] [--agent AGENT]
    seer sweep main.py --matrix gap.toml --into sweeps/gap    # what do the tools add?

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
from seer.sweeps import current_cell, report
from seer.workspace import Library

HERE = Path(__file__).parent
TOOLS = {"whitebox": interfaces.whitebox, "blackbox": interfaces.blackbox}
FIELDS = {"favourite": "what it favours", "assumed": "man or woman"}


async def main() -> None:
    """Investigate one organism, and print the answer's grade."""
    cell = current_cell()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--organism", default=cell.model or "favourite")
    parser.add_argument("--tools", choices=TOOLS, default=cell.tools or "whitebox")
    parser.add_argument("--agent", default=cell.agent or f"scripted:{HERE / 'steps.toml'}")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    baseline = [
        Library.from_file(HERE / "baseline.py"),
        Library.from_file(HERE.parent / "shared" / "cite.py"),
        Library.from_code("settings", f"SEED = {cell.seed}\n"),
    ]
    outcome = await investigate(
        arguments.organism,
        interface=TOOLS[arguments.tools],
        task=(HERE / "task.md").read_text() + "\n" + answer_format(FIELDS),
        provider=arguments.agent,
        model=arguments.model,
        libraries=baseline if arguments.agent.startswith("scripted:") else [],
    )
    say(outcome)
    checked = verify(open_run(outcome.run))
    say(checked)
    report(score=float(outcome.correct), found=outcome.answer is not None and outcome.answer.found)
    # In a sweep, the score counts; a cell that ends with an error has none.
    if not checked.stands and not cell.model:
        sys.exit(f"the report does not stand: see seer verify {outcome.run.name}")


if __name__ == "__main__":
    asyncio.run(main())
