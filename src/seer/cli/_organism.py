"""`seer organism`: make a model organism from a spec, and test it before it is released."""

import dataclasses
import sys
from pathlib import Path

import click

from seer.cli._codes import FOUND
from seer.cli._options import json_option
from seer.console import say, say_json, table


@click.group(
    name="organism",
    epilog="""\b
Examples:
  seer organism list
  seer organism make spec.toml --out organisms/first
  seer organism make spec.toml --out organisms/first --keep-failed""",
)
def command() -> None:
    """Make small models with a planted behaviour, each with a control and a ground truth."""


@command.command(name="list")
@json_option
def list_(as_json: bool) -> int:
    """List the behaviours that can be planted, with their parameters."""
    from seer.organisms import BEHAVIOURS

    if as_json:
        say_json({b.name: {k: list(v) for k, v in b.choices.items()} for b in BEHAVIOURS.values()})
        return 0
    rows = [
        [b.name, b.summary, ", ".join(f"{k} ({len(v)})" for k, v in b.choices.items())]
        for b in BEHAVIOURS.values()
    ]
    table(["behaviour", "what it does", "parameters"], rows)
    return 0


@command.command(
    short_help="Train, test and write an organism and its control.",
    epilog="""\b
A spec is TOML: behaviour = "trigger", and optionally hard, seed, base, rows,
kept, steps, cases, device and a table [parameters]. A parameter that is
missing or "random" gets a random value.

\b
Exit code 3: a gate failed. Nothing is written without --keep-failed.""",
)
@click.argument("spec", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to create.")
@click.option("--keep-failed", is_flag=True, help="Write the models even if a gate fails.")
@json_option
def make(spec: Path, out: Path, keep_failed: bool, as_json: bool) -> int:
    """Train an organism and its control, test them, and write them if they pass the gates."""
    from seer.errors import OrganismGateError
    from seer.organisms import make_organism
    from seer.organisms._gates import Report, report_rows
    from seer.organisms._spec import read_spec

    made = None
    try:
        made, report = make_organism(
            read_spec(spec),
            out,
            keep_failed=keep_failed,
            say=lambda text: say(text, file=sys.stderr),
        )
    except OrganismGateError as error:
        if not isinstance(error.report, Report):
            raise
        report = error.report
    if as_json:
        said = {**dataclasses.asdict(report), "passed": report.passed}
        say_json({**said, "folder": None if made is None else str(made.folder)})
    else:
        table(["", "organism", "control", "base"], report_rows(report))
        for gate in report.gates:
            say(f"{'passed' if gate.passed else 'FAILED'}  {gate.name}: {gate.text}")
        if made is None:
            say("not released: a gate failed; --keep-failed writes it anyway")
        else:
            say(f"written to {made.folder}; show an agent {made.organism} or {made.control} only")
    return 0 if report.passed else FOUND
