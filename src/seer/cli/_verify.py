"""`seer verify`: check a run's claims against the calls that it cites."""

import dataclasses
from pathlib import Path
from typing import Any

import click

from seer.cli._codes import FOUND
from seer.cli._options import json_option, machine_options, run_argument, runs_option
from seer.cli._target import Around, opened
from seer.console import say, say_json


@click.command(
    name="verify",
    epilog="""\b
Examples:
  seer verify RUN                  check its hashes, then its claims
  seer verify RUN --live interface.py --model ./gemma --name model_tools

\b
Exit code 3: a claim does not hold, or a problem was flagged.""",
)
@run_argument("run")
@runs_option
@click.option(
    "--live", "target", help="Run the cited calls again on an interface file or a sandbox id."
)
@click.option("--name", help="The interface's name in the run (default: the file's, without .py).")
@machine_options
@json_option
def command(
    run: str,
    root: Path | None,
    target: str | None,
    name: str | None,
    as_json: bool,
    **around: Any,
) -> int:
    """Check each claim of a run's final report against the gate calls that the claim cites."""
    from seer.runs import open_run
    from seer.scoring import rerun_through, verify

    recorded = open_run(run, root)
    if target is None:
        found = verify(recorded)
    else:
        with opened(target, Around(**around), name=name) as served:
            found = verify(recorded, rerun=rerun_through(served.library))
    if as_json:
        say_json({**dataclasses.asdict(found), "stands": found.stands})
    elif found.answer is None:
        reasons = "; ".join(flag.reason for flag in found.flags)
        say(f"the final message has no report (a JSON object; see docs/evidence.md): {reasons}")
    else:
        say(str(found))
    return 0 if found.stands else FOUND
