"""`seer demo`: the template's experiment, from a folder that is gone afterwards."""

from pathlib import Path

import click

from seer._transient import TransientFolder
from seer.cli._init import create
from seer.cli._options import runs_option
from seer.cli._run import run_program, show


@click.command(name="demo")
@runs_option
def command(root: Path | None) -> int:
    """An agent asks a small real model whom it expects in which profession: no key, no GPU.

    It is what `seer init` makes, run with the scripted agent; the record is kept.
    """
    with TransientFolder("demo") as scratch:
        folder = create(scratch / "demo")
        code, made = run_program(folder / "main.py", root=root)
    show(made)
    return code
