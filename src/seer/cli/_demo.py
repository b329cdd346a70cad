"""`seer demo`: run the template's experiment in a temporary folder."""

import sys
from pathlib import Path

import click

from seer._transient import TransientFolder
from seer.cli._demo_environment import has_model_packages, has_weights, make
from seer.cli._init import create
from seer.cli._interrupts import Interrupted
from seer.cli._options import runs_option
from seer.cli._run import run_program, show
from seer.console import say

_QUIET = {"TQDM_DISABLE": "1"}
"""Hides the progress bars of the conversion to safetensors, which takes only seconds."""


@click.command(name="demo")
@runs_option
def command(root: Path | None) -> int:
    """Let a scripted agent study a small real model: no key, no GPU.

    This runs the experiment that `seer init` creates, and keeps the record.
    If torch is not installed, the first demo creates a cached environment with torch's CPU build
    and the model. Later commands use that environment too.
    """
    try:
        python = None if has_model_packages() and has_weights() else make()
    except KeyboardInterrupt:
        raise Interrupted("no environment was made; run again with: seer demo") from None
    with TransientFolder("demo") as scratch:
        folder = create(scratch / "demo")
        code, made = run_program(folder / "main.py", root=root, python=python, env=_QUIET)
    show(made, code, again="seer demo")
    if code == 0:
        say("make your own: seer init my-study && cd my-study && seer run", file=sys.stderr)
    return code
