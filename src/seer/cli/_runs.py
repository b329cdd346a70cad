"""`seer runs`: work with the records of runs in a terminal."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from seer.cli._codes import FOUND
from seer.cli._options import json_option, run_argument, runs_option
from seer.console import confirm, say, say_json, table
from seer.console._output import duration

if TYPE_CHECKING:
    from seer.runs import Run, RunSummary
    from seer.runs._compare import Step

_STATUSES = ["running", "completed", "limit", "cancelled", "error", "crashed"]
_COLOURS = {
    "completed": "green",
    "running": "bold cyan",
    "limit": "yellow",
    "cancelled": "dim",
    "error": "red",
    "crashed": "red",
}
_CALL_COLUMNS = [
    *("call", "caller", "function", "outcome", "queued ms", "ran ms", "batch", "bytes in", "out"),
]
_LESS_NEEDED = ["caller", "batch", "bytes in", "out", "queued ms", "ran ms"]
"""Columns that a narrow terminal leaves out: claims cite calls, so ids stay whole."""


def _limit(_ctx: click.Context, param: click.Parameter, given: str | None) -> float | str | None:
    if given is None or given == "none":
        return given
    try:
        number = float(given)
    except ValueError:
        raise click.BadParameter(f"{given!r} is neither a number nor 'none'", param=param) from None
    return int(number) if number.is_integer() else number


@click.group(
    name="runs",
    epilog="""\b
Examples:
  seer runs list --status error --search "hidden preference"
  seer runs list --runs sweeps/first    the runs of a sweep
  seer runs show 4f2a9c1b               an id's beginning or end is enough
  seer runs say RUN "look at layer 5"   and: stop RUN, limits RUN --cost-usd 2
  seer runs diff RUN OTHER              where two runs diverge
  seer runs export RUN run.eval         for `inspect view`
  seer runs export RUN OTHER logs       several, into a folder""",
)
def command() -> None:
    """List, show, change, compare, export and delete runs."""


@command.command("list")
@runs_option
@click.option("--status", type=click.Choice(_STATUSES), help="Only runs with this status.")
@click.option("--agent", "provider", help="Only runs of this agent, such as claude.")
@click.option("--model", help="Only runs with this model of the agent.")
@click.option("--name", help="Only runs with this name; a * at the end matches any ending.")
@click.option("--search", help="Only runs with these words in name, task, prompt or result.")
@click.option(
    "--order",
    default="created",
    help="Sort by this column: created (default), ended, cost_usd, tokens, turns, ...",
)
@click.option(
    "--limit", default=20, type=click.IntRange(1), help="List at most this many (default 20)."
)
@click.option("--offset", default=0, type=click.IntRange(0), help="Skip this many.")
@json_option
def list_runs(
    root: Path | None, order: Any, limit: int, offset: int, as_json: bool, **where: Any
) -> None:
    """List runs, newest first."""
    from seer.errors import ConfigError
    from seer.runs import RunFilter, RunIndex

    typed = click.get_current_context().get_parameter_source("root") == ParameterSource.COMMANDLINE
    # A sweep whose programs recorded no run has no such folder.
    if typed and root and not root.exists() and not (root.parent / "sweep.json").is_file():
        raise click.BadParameter(f"the folder {str(root)!r} does not exist", param_hint="'--runs'")
    index = RunIndex(root)
    chosen = RunFilter(**where)
    try:
        found = index.list(chosen, order=order, limit=limit, offset=offset)
    except ConfigError as error:
        words = f"{order!r}: {error.reason}"
        raise click.BadParameter(words, param_hint="'--order'") from None
    if as_json:
        say_json([dataclasses.asdict(run) for run in found])
        return
    if not found:
        say(f"no runs in {index.root}" + (" match" if any(where.values()) else ""))
        return
    columns = ["run", "ago", "status", "name", "agent", "turns", "calls", "cost", "score"]
    rows = [_row(run) for run in found]
    # Hide cost and score if no run has one.
    kept = [i for i in range(len(columns)) if i < 7 or any(row[i] != "-" for row in rows)]
    columns, rows = [columns[i] for i in kept], [tuple(row[i] for i in kept) for row in rows]
    table(columns, rows, shorten={"name", "agent"}, colours=_COLOURS)
    for run in found:
        if run.lineage:
            say(f"{run.short_id} is a {run.lineage}")
    total = index.count(chosen)
    if total > len(found):
        say(f"{offset + 1} to {offset + len(found)} of {total}; --limit and --offset show others")


def _row(run: "RunSummary") -> tuple[object, ...]:
    agent = run.provider or "-"
    return (
        run.short_id,
        duration(time.time() - run.created, short=True),
        run.status,
        " ".join((run.name or run.task).split())[:60],
        f"{agent}/{run.model}" if run.model else agent,
        run.turns or 0,
        run.calls or 0,
        "-" if run.cost_usd is None else f"${run.cost_usd:.2f}",
        "-" if run.score is None else f"{run.score:.4g}",
    )


@command.command("show")
@run_argument("run")
@runs_option
@click.option("--calls", is_flag=True, help="Show the gate calls instead of the transcript.")
@json_option
def show(run: str, root: Path | None, calls: bool, as_json: bool) -> None:
    """Show what happened in a run."""
    from seer.runs import open_run

    found = open_run(run, root)
    if as_json:
        lines = found.calls() if calls else found.events()
        say_json({"run": found.meta, "calls" if calls else "events": list(lines)})
    elif calls:
        _show_calls(found)
    else:
        _show_transcript(found)


def _show_transcript(run: "Run") -> None:
    from seer.events import (
        ApprovalGiven,
        ErrorEvent,
        LimitReached,
        MessageNotDelivered,
        MessageQueued,
        RunStarted,
        Thinking,
        UserMessage,
    )
    from seer.harness import RunFinished, Text, ToolCall, ToolResult

    meta, score = run.meta, run.info.score
    agent = f"{meta.get('provider')} {meta.get('model') or ''}".rstrip()
    graded = "" if score is None else f", score {score:.4g}"
    say(f"run {run.run_id}: {run.status}, {agent}{graded}")
    for event in run.typed_events():
        if isinstance(event, RunStarted):
            say(f"\n> {_indented(event.task)}")
        elif isinstance(event, UserMessage):
            say(f"\n> {_indented(event.text)}")
        elif isinstance(event, MessageQueued):
            say(f"\n(message, waits for the end of the reply) {_indented(event.text)}")
        elif isinstance(event, MessageNotDelivered):
            say(f"\nmessage not delivered, {_indented(event.summary())}")
        elif isinstance(event, Text):
            say(f"\n{event.text.rstrip()}")
        elif isinstance(event, Thinking):
            say(f"\n(thinks) {event.text.rstrip()}")
        elif isinstance(event, ToolCall):
            code = event.arguments.get("code")
            said = code if isinstance(code, str) else json.dumps(dict(event.arguments))
            say(f"\n[{event.name}] {_indented(said)}")
        elif isinstance(event, ApprovalGiven):
            why = f": {event.reason}" if event.reason else ""
            say(f"  ? {'approved' if event.approved else 'denied'} by a {event.by}{why}")
        elif isinstance(event, ToolResult):
            mark = "!" if event.is_error else "="
            say(f"  {mark} {_indented(event.text)}" + " (image)" * len(event.images))
        elif isinstance(event, LimitReached):
            say(f"\nlimit reached: {event.limit}")
        elif isinstance(event, ErrorEvent):
            say(f"\nerror ({event.kind}): {event.message}")
        elif isinstance(event, RunFinished):
            cost = "" if event.cost_usd is None else f", ${event.cost_usd:.4f}"
            say(f"\n{event.reason} after {event.turns} turns, {event.seconds:.1f} s{cost}")
    say(f"the record is in {run.folder}")


def _indented(text: str) -> str:
    return text.strip().replace("\n", "\n    ")


def _show_calls(run: "Run") -> None:
    rows: list[tuple[object, ...]] = []
    for call in run.typed_calls():
        times = (round(call.queue * 1000, 2), round(call.run * 1000, 2))
        sizes = (call.batch or 1, call.bytes_in, call.bytes_out)
        rows.append((call.call, call.caller, call.function, call.outcome, *times, *sizes))
    if rows:
        hidden = table(_CALL_COLUMNS, rows, shorten={"function"}, leave_out=_LESS_NEEDED)
        if hidden:
            say(f"not shown on this narrow terminal: {', '.join(hidden)}")
    else:
        say("no gate calls are recorded")


@command.command("stop")
@run_argument("run")
@runs_option
@click.option("--conclude", is_flag=True, help="Close the tools and give the agent one last turn.")
def stop(run: str, root: Path | None, conclude: bool) -> None:
    """End a running run. Its record is closed and kept."""
    from seer.harness import control_run
    from seer.runs import open_run

    found = open_run(run, root)
    control_run(found.folder, "conclude" if conclude else "stop")
    done = "the agent gets one last turn" if conclude else "stopped"
    say(f"{found.run_id}: {done}; the record is kept", file=sys.stderr)


@command.command("say")
@run_argument("run")
@click.argument("text")
@runs_option
def say_to(run: str, text: str, root: Path | None) -> None:
    """Send a message to a run's agent.

    The agent gets the message after its current reply, which ends when the agent answers without
    calling a tool. If the run ends first, the record says that the message was not delivered. The
    command fails if the agent takes no more messages.
    """
    from seer.harness import control_run
    from seer.runs import open_run

    found = open_run(run, root)
    control_run(found.folder, "message", text=text)
    say(
        f"{found.run_id}: the message is delivered after the agent's reply; if the run ends first, "
        f"seer runs show {found.run_id} says so",
        file=sys.stderr,
    )


@command.command("limits", short_help="Change the limits of a running run.")
@run_argument("run")
@runs_option
@click.option("--turns", metavar="NUMBER|none", callback=_limit, help="Turns of the agent.")
@click.option("--tool-calls", metavar="NUMBER|none", callback=_limit, help="Tool calls.")
@click.option(
    "--seconds", metavar="NUMBER|none", callback=_limit, help="Seconds from the start of the run."
)
@click.option("--tokens", metavar="NUMBER|none", callback=_limit, help="Input and output tokens.")
@click.option("--cost-usd", metavar="NUMBER|none", callback=_limit, help="Cost in dollars.")
def limits(run: str, root: Path | None, **given: float | str | None) -> None:
    """Change the limits of a running run: a number sets a limit, `none` removes it.

    Without options, the command only shows the limits.
    """
    from seer.harness import control_run
    from seer.runs import open_run

    changed = {n: None if v == "none" else v for n, v in given.items() if v is not None}
    found = open_run(run, root)
    if changed:
        control_run(found.folder, "limits", limits=changed)
    now: dict[str, float | None] = found.meta.get("limits") or {}
    for name, value in {**now, **changed}.items():
        say(f"{name}: {'no limit' if value is None else f'{value:g}'}")


@command.command("diff")
@run_argument("left")
@run_argument("right")
@runs_option
@json_option
def diff(left: str, right: str, root: Path | None, as_json: bool) -> int:
    """Show where two runs diverge. Exit code 3 means that they do."""
    from seer.runs import compare_runs, open_run

    found = compare_runs(open_run(left, root), open_run(right, root))
    if as_json:
        say_json({**dataclasses.asdict(found), "equal": found.equal})
    elif found.equal:
        say(f"the same: {found.same} steps, {_count(found.calls[0])}")
    else:
        if found.left or found.right:
            say(f"{found.same} steps are the same, then:")
            _show_steps(found.left, found.right, nothing="(the run ends here)")
        else:
            say(f"all {found.same} steps are the same")
        if found.call is not None:
            call = found.call
            who = " and ".join(dict.fromkeys(filter(None, call.callers)))
            be = "is" if call.same == 1 else "are"
            say(f"of {call.interface!r}, by {who}: {_count(call.same)} {be} the same, then:")
            _show_steps(call.left, call.right, nothing="(no more calls)")
    return 0 if found.equal else FOUND


def _count(calls: int) -> str:
    return f"{calls} call" + "s" * (calls != 1)


def _show_steps(left: "Step | None", right: "Step | None", *, nothing: str) -> None:
    for mark, step in (("<", left), (">", right)):
        said = nothing
        if step is not None:
            fields = json.dumps(dict(step.fields), indent=2, ensure_ascii=False)
            what = f"event {step.position}: {step.type}"
            if step.type == "gate_call":
                what = f"call {step.position}:"
            said = f"{what} {fields}"
        say(f"{mark} " + said.replace("\n", f"\n{mark} "))


@command.command("export", short_help="Write runs as Inspect logs.")
@run_argument("runs", nargs=-1, required=True)
@click.argument("target", type=click.Path(path_type=Path))
@runs_option
def export(runs: tuple[str, ...], target: Path, root: Path | None) -> None:
    """Write runs as Inspect logs: into a folder, or one run as TARGET.eval or TARGET.json."""
    from seer.runs import export_inspect, open_run

    for path in export_inspect([open_run(run, root) for run in runs], target):
        say(str(path))


@command.command("delete")
@run_argument("runs", nargs=-1, required=True)
@runs_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(runs: tuple[str, ...], root: Path | None, yes: bool) -> None:
    """Delete runs permanently."""
    from seer.runs import delete_run, open_run

    found = [open_run(run, root) for run in runs]
    if not yes:
        names = ", ".join(run.run_id for run in found)
        if not confirm(f"Permanently delete {len(found)} run(s): {names}?"):
            raise click.Abort
    for run in found:
        delete_run(run)
        say(f"{run.run_id}: deleted", file=sys.stderr)
