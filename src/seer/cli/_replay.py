"""`seer replay`: a recorded experiment again, without its model, GPU or agent."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seer.cli._options import runs_option
from seer.cli._run import run_program, show
from seer.console import say
from seer.errors import RecordError

if TYPE_CHECKING:
    from seer.runs import Run

_FOUND = 3


@click.command(
    name="replay",
    epilog="""\b
Examples:
  seer replay RUN                      the same program, answered from the record
  seer replay RUN --live-after local   go on with a real sandbox where the record ends
\b
Exit code 3: the program ran, and did something else than the record says.""",
)
@click.argument("run")
@runs_option
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The program (default: the one that was recorded).",
)
@click.option("--live-after", metavar="PROVIDER", help="Where to go on after the record.")
@click.option("--live-agent", is_flag=True, help="Ask the real agent; replay only its tools.")
def command(
    run: str, root: Path | None, program: Path | None, live_after: str | None, live_agent: bool
) -> int:
    """Run a recorded experiment again; calls of the gate and the agent come from the record."""
    from seer.runs import compare_runs, open_run, replay_environment, runs_root

    recorded = open_run(run, root)
    file, arguments = _program(recorded, program)
    env = replay_environment(recorded, live=live_after)
    if live_agent:
        env["SEER_AGENT"] = os.environ.get("SEER_AGENT", "")
    code, made = run_program(file, arguments, root=root, env=env)
    show(made)
    if code or not made:
        return code or _FOUND
    found = compare_runs(recorded, open_run(made[-1].run_id, runs_root(root)))
    if found.equal:
        say(f"the same as {recorded.run_id}: {found.same} steps")
        return 0
    say(f"after {found.same} steps it parts from {recorded.run_id}:")
    say(f"  seer runs diff {recorded.run_id} {made[-1].run_id}")
    return 0 if live_after or live_agent else _FOUND


def _program(run: "Run", given: Path | None) -> tuple[Path, list[str]]:
    """The program to run, and its arguments."""
    recorded: dict[str, Any] = run.meta.get("program") or {}
    argv: list[str] = recorded.get("argv") or []
    if given is not None:
        return given, argv[1:]
    if not argv:
        raise RecordError(f"{run.run_id} does not say which program it was; give --program")
    file = Path(recorded.get("cwd") or ".", argv[0])
    if not file.is_file():
        raise RecordError(f"the program {str(file)!r} is not there any more; give --program")
    return file, argv[1:]
