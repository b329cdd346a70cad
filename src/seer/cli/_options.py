"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

_F = TypeVar("_F", bound=Callable[..., Any])


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for other programs."
)
"""Print one JSON document instead of tables."""
interface_argument = click.argument(
    "interface", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


def _runs_folder(_ctx: click.Context, _param: click.Parameter, given: Path | None) -> Path | None:
    """The folder of records that was named; a sweep has one inside it."""
    return given / "runs" if given is not None and (given / "sweep.json").is_file() else given


runs_option = click.option(
    "--runs",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SEER_RUNS",
    callback=_runs_folder,
    help="The folder of the records, or a sweep (default: $SEER_RUNS, else ./outputs/runs).",
)


def run_argument(name: str, **settings: Any) -> Callable[[_F], _F]:
    """An argument that names a run, with completion."""
    return click.argument(name, shell_complete=_complete_runs, **settings)


def _complete_runs(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from seer.runs import RunIndex

    runs = RunIndex(ctx.params.get("root")).list(limit=200)
    return [
        CompletionItem(name, help=f"{run.status}: {run.name}")
        for run in runs
        for name in (run.short_id, run.run_id)
        if name.startswith(incomplete)
    ]


def machine_argument(name: str, **settings: Any) -> Callable[[_F], _F]:
    """An argument that names a machine, with completion."""
    return click.argument(name, shell_complete=_complete_machines, **settings)


def _complete_machines(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from seer.cli._machines import running

    # Those of this machine only: a key press must not wait for vendors.
    return [
        CompletionItem(machine.id, help=machine.label)
        for machine in running(["local"]).machines
        if machine.id.startswith(incomplete)
    ]


def machine_options(function: _F) -> _F:
    """What an interface needs around it: models, packages, GPU, provider, isolation."""
    for option in (
        click.option(
            "--isolation",
            type=click.Choice(["auto", "bubblewrap", "landlock", "none"]),
            default="auto",
            help="The kind of jail (default: the strongest that works here).",
        ),
        click.option(
            "--provider", help="Where to run it (default: $SEER_PROVIDER, else modal or local)."
        ),
        click.option("--gpu", help="The GPU that it needs, such as A100 (default: none)."),
        click.option(
            "--package",
            "packages",
            multiple=True,
            help="A Python package it imports (can be repeated).",
        ),
        click.option("--hidden", is_flag=True, help="Hide the models' names from callers."),
        click.option(
            "--model",
            "models",
            multiple=True,
            help="A model it loads, hub id or folder (can be repeated).",
        ),
    ):
        function = option(function)
    return function
