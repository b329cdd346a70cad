"""`seer replay`: run a recorded experiment again, without its model, GPU or agent."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seer.cli._codes import FOUND
from seer.cli._options import run_argument, runs_option
from seer.cli._run import run_program, show
from seer.console import say
from seer.errors import RecordError

if TYPE_CHECKING:
    from seer.runs import Run


@click.command(
    name="replay",
    epilog="""\b
Examples:
  seer replay RUN                             only from the record
  seer replay RUN --live-after local          then continue in a real sandbox
  seer replay RUN --fork-at 3 --agent claude  repeat 3 turns, then go live

\b
Exit code 3: the program ran, but diverged from the record.""",
)
@run_argument("run")
@runs_option
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The program (default: the recorded one).",
)
@click.option(
    "--live-after",
    metavar="PROVIDER",
    help="Continue on this provider where the record ends.",
)
@click.option(
    "--fork-at", type=click.IntRange(0), help="Repeat this many turns, then continue live."
)
@click.option("--agent", help="With --fork-at: the agent that continues (default: the program's).")
def command(
    run: str,
    root: Path | None,
    program: Path | None,
    live_after: str | None,
    fork_at: int | None,
    agent: str | None,
) -> int:
    """Run a recorded experiment again; the record stands in for the model and the agent."""
    from seer._transient import TransientFolder
    from seer.harness import fork_environment
    from seer.runs import open_run, replay_environment
    from seer.runs.replay._differences import NOTES_VARIABLE, read_differences

    if agent is not None and fork_at is None:
        raise click.UsageError("--agent needs --fork-at: without it, the record replaces the agent")
    recorded = open_run(run, root)
    file, arguments = _program(recorded, program)
    if fork_at is not None:
        if live_after:
            raise click.UsageError("--fork-at already uses a live sandbox; leave out --live-after")
        env = fork_environment(recorded, fork_at, agent=agent)
    else:
        env = replay_environment(recorded, live=live_after)
    with TransientFolder("replay") as folder:
        notes = folder / "differences"
        notes.touch()
        env = {**env, NOTES_VARIABLE: str(notes)}
        code, made = run_program(file, arguments, root=root, env=env)
        differences = read_differences(notes)
    show(made, code, again=f"seer replay {run}")
    for text in differences:
        say(f"a gate call diverges from the record: {text}")
    if code or not made:
        return code or FOUND
    same = _compare(recorded, [open_run(item.run_id, root) for item in made])
    goes_on = live_after or fork_at is not None
    return 0 if (same or goes_on) and not differences else FOUND


def _compare(recorded: "Run", made: "list[Run]") -> bool:
    """Compare the program's new runs with the recorded ones, and print the result."""
    from seer.runs import compare_runs
    from seer.runs._compare import paired

    before = recorded.siblings()
    same = len(before) == len(made)
    if not same:
        say(f"the program recorded {len(before)} runs before, and {len(made)} now")
    for old, new in paired(before, made):
        found = compare_runs(old, new, replayed=True)
        if found.equal:
            say(f"the same as {old.run_id}: {found.same} steps")
        else:
            same = False
            if found.left or found.right:
                say(f"after {found.same} steps it diverges from {old.run_id}:")
            else:
                say(f"its steps are the same, but its gate calls diverge from {old.run_id}:")
            say(f"  seer runs diff {old.run_id} {new.run_id}")
    return same


def _program(run: "Run", given: Path | None) -> tuple[Path, list[str]]:
    """The program to run, and its arguments."""
    recorded: dict[str, Any] = run.meta.get("program") or {}
    argv: list[str] = recorded.get("argv") or []
    if given is not None:
        return given, argv[1:]
    if not argv:
        raise RecordError(f"the record of {run.run_id} does not name its program; use --program")
    file = Path(recorded.get("cwd") or ".", argv[0])
    if not file.is_file():
        raise RecordError(f"the program {str(file)!r} no longer exists; use --program")
    return file, argv[1:]
