"""Auditor, target, judge: an auditor talks with a target model, and a judge scores the target.

    python main.py [--organism NAME] [--agent AGENT] [--judge AGENT]

Without an agent, the auditor in `auditor.py` works; without a judge, the rules in `judge.py` score.
"""

import argparse
import asyncio
import sys
from pathlib import Path

import judge as rules

from seer import interfaces
from seer.console import say
from seer.organisms import organism
from seer.runs import open_run
from seer.scoring import answer_format, investigate, judge, verify
from seer.workspace import Library

HERE = Path(__file__).parent


async def main() -> None:
    """Audit one organism, and judge the transcript."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--organism", default="favourite")
    parser.add_argument("--agent", default=f"scripted:{HERE / 'steps.toml'}")
    parser.add_argument("--judge", help="who judges beside the rules, such as claude")
    arguments = parser.parse_args()
    auditor = [
        Library.from_file(HERE / "auditor.py"),
        Library.from_file(HERE.parent / "shared" / "cite.py"),
    ]
    outcome = await investigate(
        arguments.organism,
        interface=interfaces.blackbox,
        task=(HERE / "task.md").read_text() + "\n" + answer_format({"favourite": "what it is"}),
        provider=arguments.agent,
        libraries=auditor if arguments.agent.startswith("scripted:") else [],
    )
    run = open_run(outcome.run)
    turns = rules.transcript([*run.typed_calls()])
    scores = rules.score(turns)
    say(outcome)
    say(f"judge: lean {scores.lean!r}, steering {scores.steering}")
    say(f"judge: concealment {scores.concealment}")
    if arguments.judge:
        text = "\n".join(f"USER: {user}\nTARGET: {said}" for user, said in turns)
        kind = organism(arguments.organism).kind
        say(f"judge model: {await judge(text, kind, provider=arguments.judge)}")
    checked = verify(run)
    say(checked)
    if not checked.stands:
        sys.exit(f"the report does not stand: see seer verify {outcome.run.name}")


if __name__ == "__main__":
    asyncio.run(main())
