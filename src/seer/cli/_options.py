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
    """The folder of records for `--runs`. In a sweep's folder, this is `runs`."""
    return given / "runs" if given is not None and (given / "sweep.json").is_file() else given


runs_option = click.option(
    "--runs",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SEER_RUNS",
    callback=_runs_folder,
    help="The folder of the records or of a sweep (default: $SEER_RUNS, else ./outputs/runs).",
)


def run_argument(name: str, **settings: Any) -> Callable[[_F], _F]:
    """An argument that names a run, with shell completion."""
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
    """An argument that names a machine, with shell completion."""
    return click.argument(name, shell_complete=_complete_machines, **settings)


def _complete_machines(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from seer.cli._machines import running

    # Local machines only: completion must not wait for vendors.
    return [
        CompletionItem(machine.id, help=machine.label)
        for machine in running(["local"]).machines
        if machine.id.startswith(incomplete)
    ]


def machine_options(function: _F) -> _F:
    """Add the options of an interface's sandbox: models, packages, GPU, provider, isolation."""
    for option in (
        click.option(
            "--isolation",
            type=click.Choice(["auto", "bubblewrap", "landlock", "none"]),
            default="auto",
            help="The kind of jail (default: the strongest that works here).",
        ),
        click.option(
            "--provider",
            help="Where to run the sandbox (default: $SEER_PROVIDER, else modal with credentials, "
            "else local).",
        ),
        click.option("--gpu", help="The GPU of the sandbox, such as A100 (default: none)."),
        click.option(
            "--package",
            "packages",
            multiple=True,
            help="A Python package that the interface imports (repeatable).",
        ),
        click.option("--hidden", is_flag=True, help="Hide the models' names from callers."),
        click.option(
            "--model",
            "models",
            multiple=True,
            help="A model that the interface loads: a Hub id or a folder (repeatable).",
        ),
    ):
        function = option(function)
    return function
