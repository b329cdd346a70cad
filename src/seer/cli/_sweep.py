"""`seer sweep`: run an experiment once per cell of a matrix, with a live status line."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seer.cli._codes import FOUND
from seer.cli._interrupts import Interrupted
from seer.cli._options import json_option
from seer.cli._preflight import check_agents, check_approval, check_room
from seer.console import say, say_json, table
from seer.console._output import duration, status_line

if TYPE_CHECKING:
    from seer.sweeps import Executor, Matrix, Progress, Summary, SweepResult


@click.command(
    name="sweep",
    epilog="""\b
Examples:
  seer sweep main.py --matrix agents.toml --into sweeps/first --concurrency 8
  seer sweep main.py --matrix agents.toml --into sweeps/big --on ray --gpus 1
  seer sweep --into sweeps/first                  results so far
  seer sweep --into sweeps/first --concurrency 2  change a running sweep

\b
agents.toml: agents = ["claude", "openai"], models = [...], seeds = 5
After a crash, the same command continues: finished cells are not run again.
Killed cells are retried once; failed cells are not (see --retry-failed).
On a cluster, name the keys that the program needs with --env.
Exit code 3: some cells failed or did not run. A cell without a score is done.""",
)
@click.argument(
    "program", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--matrix",
    "matrix_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with the axes.",
)
@click.option(
    "--into",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The sweep's folder.",
)
@click.option("--concurrency", type=click.IntRange(0), help="Cells to run at once (default 2).")
@click.option(
    "--budget-usd",
    type=click.FloatRange(0),
    help="Start no more cells once the total cost reaches this.",
)
@click.option("--timeout", type=click.FloatRange(0), help="Time limit of an attempt, in seconds.")
@click.option(
    "--retry-failed", default=0, type=click.IntRange(0), help="How often to retry a failed cell."
)
@click.option(
    "--on",
    "place",
    default="here",
    metavar="here|ray[:ADDRESS]",
    help="Where to run cells (default: this machine). Without ADDRESS, `ray` uses $RAY_ADDRESS, "
    "or starts Ray here.",
)
@click.option("--cpus", type=click.FloatRange(0), help="On Ray: CPUs per cell (default 1).")
@click.option("--gpus", type=click.FloatRange(0), help="On Ray: GPUs per cell (default 0).")
@click.option(
    "--memory", type=click.FloatRange(0, min_open=True), help="On Ray: GiB of memory per cell."
)
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="On Ray: folder to send to nodes (default: the program's).",
)
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable for the program (repeatable); NAME alone takes the value from this shell.",
)
@json_option
def command(
    program: Path | None,
    matrix_file: Path | None,
    folder: Path,
    concurrency: int | None,
    budget_usd: float | None,
    timeout: float | None,
    retry_failed: int,
    place: str,
    cpus: float | None,
    gpus: float | None,
    memory: float | None,
    source: Path | None,
    variables: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run an experiment for every combination of agents, tool sets, models and seeds."""
    from seer.sweeps import Matrix, Retry, read_sweep, run, set_concurrency

    if program is None:
        if concurrency is not None:
            set_concurrency(folder, concurrency)
        return _show(read_sweep(folder), as_json=as_json)
    if matrix_file is None:
        raise click.UsageError("a new sweep needs --matrix FILE")
    matrix = Matrix.from_file(matrix_file)
    _check(program, matrix, folder, elsewhere=place != "here")
    on = _place(place, cpus=cpus, gpus=gpus, memory=memory, source=source)
    with _going_on(folder), status_line() as show:
        sweep = run(
            program,
            matrix,
            folder=folder,
            concurrency=2 if concurrency is None else concurrency,
            retry=Retry(failed=retry_failed),
            timeout=timeout,
            budget_usd=budget_usd,
            env=_environment(variables),
            on=on,
            on_progress=_progress(show),
        )
    return _show(sweep, as_json=as_json)


@contextlib.contextmanager
def _going_on(folder: Path) -> Generator[None]:
    """On Ctrl-C, say what was kept and how to continue."""
    from seer.errors import SeerError
    from seer.sweeps import read_sweep

    try:
        yield
    except KeyboardInterrupt:
        kept = f"finished cells are kept in {folder}"
        with contextlib.suppress(SeerError):
            found = read_sweep(folder)
            kept = f"{found.done} of {len(found.cells)} cells are finished, and kept in {folder}"
        raise Interrupted(f"{kept}; the same command continues") from None


def _check(program: Path, matrix: "Matrix", folder: Path, *, elsewhere: bool) -> None:
    """Check agents, models, disk space, and packages for tables and plots before the first cell."""
    from seer.environment.models._folder import own_folder
    from seer.environment.models._names import is_local_model
    from seer.errors import MissingExtraError

    if elsewhere and importlib.util.find_spec("ray") is None:
        raise MissingExtraError("Ray is not installed; run: pip install 'seer-interp[ray]'")
    missing = [n for n in ("scipy", "matplotlib", "pyarrow") if importlib.util.find_spec(n) is None]
    if missing:
        raise MissingExtraError(
            f"the tables and plots of a sweep need {', '.join(missing)}; run: "
            "pip install 'seer-interp[sweeps]'"
        )
    check_room(folder, option="--into")
    check_approval(None)
    if not elsewhere:  # nodes of a cluster have packages, keys and models of their own
        for agent in matrix.agents or [None]:
            check_agents(program, agent, option="agents")
        with contextlib.chdir(program.absolute().parent):
            for model in filter(is_local_model, matrix.models):
                own_folder(model)


def _place(
    name: str,
    *,
    cpus: float | None,
    gpus: float | None,
    memory: float | None,
    source: Path | None,
) -> "Executor":
    from seer.sweeps import Local, Ray

    kind, _, address = name.partition(":")
    if name == "here":
        if any(value is not None for value in (cpus, gpus, memory, source)):
            raise click.UsageError("--cpus, --gpus, --memory and --source need --on ray")
        return Local()
    if kind != "ray":
        raise click.UsageError(f"--on {name!r} is neither 'here' nor 'ray' nor 'ray:ADDRESS'")
    return Ray(
        address=address or None,
        cpus=1 if cpus is None else cpus,
        gpus=gpus or 0,
        memory=None if memory is None else int(memory * 2**30),
        source=source,
    )


def _environment(variables: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for variable in variables:
        name, given, value = variable.partition("=")
        if not given and name not in os.environ:
            raise click.UsageError(f"--env {name}: the variable is not set here")
        found[name] = value if given else os.environ[name]
    return found


def _progress(show: Callable[[str], None]) -> "Callable[[Progress], None]":
    """Show each change on a terminal; in a log, only that cells have ended."""
    moving = sys.stderr.isatty()
    ended = 0

    def changed(now: "Progress") -> None:
        nonlocal ended
        if moving or now.done + now.failed > ended:
            ended = now.done + now.failed
            show(line(now))

    return changed


def line(now: "Progress") -> str:
    """A sweep's progress in one line."""
    running = len(now.running) - now.waiting
    queued = now.total - now.done - now.failed - running
    parts = [f"{now.done}/{now.total} done", f"{running} running, {queued} queued"]
    if now.failed:
        parts.append(f"{now.failed} failed")
    if now.retried:
        parts.append(f"{now.retried} retried")
    if now.cost_usd or now.budget_usd:
        limit = "" if now.budget_usd is None else f" of ${now.budget_usd:.2f}"
        parts.append(f"${now.cost_usd:.2f}{limit}")
    if now.seconds_left is not None and now.done < now.total:
        parts.append(f"about {duration(now.seconds_left)} left")
    return ", ".join(parts)


def _show(sweep: "SweepResult", *, as_json: bool) -> int:
    from seer.sweeps import plot, summarize

    summary = summarize(sweep)
    if as_json:
        say_json({"rows": sweep.rows(), "summary": dataclasses.asdict(summary)})
    else:
        _tables(sweep, summary)
        files = [sweep.to_csv(sweep.folder / "results.csv")]
        files.append(sweep.to_parquet(sweep.folder / "results.parquet"))
        if any(group.n for group in summary.groups):
            files += [
                plot(summary, sweep.folder / f"scores.{kind}", title=sweep.folder.name)
                for kind in ("png", "svg")
            ]
        say("written: " + ", ".join(str(file) for file in files))
    if sweep.stopped == "budget":
        say(f"stopped by its budget after ${sweep.cost_usd:.2f}; the same command continues")
    return 0 if sweep.done == len(sweep.cells) else FOUND


def _tables(sweep: "SweepResult", summary: "Summary") -> None:
    cells = sweep.rows()
    groups = [
        (group.label, group.n, group.missing, _number(group.mean), _range(group.low, group.high))
        for group in summary.groups
    ]
    table(["what", "n", "no score", "mean score", "95 % interval"], groups)
    silent = sum(row["outcome"] == "done" and row["score"] is None for row in cells)
    if silent:
        those = "1 cell has" if silent == 1 else f"{silent} cells have"
        say(f"{those} no score: report one with seer.sweeps.report(score=...) in the program")
    unrun = sum(bool(row["score"] is not None and row["agent"] and not row["ran"]) for row in cells)
    if unrun:
        those = "1 cell names" if unrun == 1 else f"{unrun} cells name"
        say(f"{those} an agent that did not run: the program reported a score without run_agent")
    if summary.differences:
        rows = [
            (
                f"{found.better} over {found.worse}",
                found.pairs,
                _number(found.mean),
                _range(found.low, found.high),
            )
            for found in summary.differences
        ]
        table(["difference, in pairs of one seed", "pairs", "mean", "95 % interval"], rows)
    failed = [row for row in cells if row["outcome"] not in ("done", "not run")]
    if failed:
        rows = [(r["cell"], r["outcome"], r["attempts"], r["error"][:80]) for r in failed]
        columns = ["without a result", "outcome", "attempts", "last output"]
        table(columns, rows, shorten={"last output"})


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _range(low: float, high: float) -> str:
    return "-" if math.isnan(low) else f"{low:.3f} to {high:.3f}"
