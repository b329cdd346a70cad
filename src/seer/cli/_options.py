"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(function: _F) -> _F:
    """`--json`: print one JSON document instead of tables, for other programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for other programs.")(
        function
    )


def runs_option(function: _F) -> _F:
    """`--runs FOLDER`: where the records are."""
    return click.option(
        "--runs",
        "root",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="SEER_RUNS",
        help="The folder of records (default: $SEER_RUNS, else ./outputs/runs).",
    )(function)


def interface_argument(function: _F) -> _F:
    """`INTERFACE`: an interface file."""
    return click.argument(
        "interface", type=click.Path(exists=True, dir_okay=False, path_type=Path)
    )(function)


def machine_options(function: _F) -> _F:
    """What an interface needs around it: models, packages, GPU, provider, isolation."""
    for option in (
        click.option(
            "--isolation",
            type=click.Choice(["auto", "bubblewrap", "landlock", "none"]),
            default="auto",
            help="Which jail (default: the best there is).",
        ),
        click.option("--provider", help="Where to run it ($SEER_PROVIDER, modal or local)."),
        click.option("--gpu", help="GPU that it must have, such as A100 (default: none)."),
        click.option("--package", "packages", multiple=True, help="Python package it imports."),
        click.option(
            "--hidden", is_flag=True, help="Hide the models' names from whoever calls it."
        ),
        click.option("--model", "models", multiple=True, help="Model it loads: hub id or folder."),
    ):
        function = option(function)
    return function
