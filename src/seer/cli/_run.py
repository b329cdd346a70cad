"""`seer run`: run an experiment in a process of its own, and show what it recorded."""

import ast
import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from seer.cli._codes import INTERRUPTED
from seer.cli._options import runs_option
from seer.cli._preflight import check_agents, check_approval, check_room, parsed
from seer.console import say, table

if TYPE_CHECKING:
    from seer.runs import RunSummary

_PR_SET_PDEATHSIG = 1


@click.command(
    name="run",
    epilog="""\b
Examples:
  seer run                             main.py in this folder
  seer run my-study --agent claude --name first-try
  seer run main.py -- --seed 3         the program gets the arguments after --

\b
The exit code is the program's own.""",
)
@click.argument(
    "program",
    default=Path(),
    type=click.Path(path_type=Path),
)
@runs_option
@click.option("--agent", help="The agent to use instead of the program's, such as claude.")
@click.option("--name", help="A name for the runs, shown in listings.")
@click.option(
    "--approve",
    help="Which tool calls to allow: auto (all), ask, deny, or by pattern: python=ask,*=deny.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    program: Path,
    root: Path | None,
    agent: str | None,
    name: str | None,
    approve: str | None,
    arguments: tuple[str, ...],
) -> int:
    """Run an experiment in its own folder; show what was recorded.

    PROGRAM is a Python file, or a folder with a main.py (default: this folder).
    """
    from seer.runs import runs_root

    program = _program(program)
    given = {"SEER_RUN_NAME": name, "SEER_APPROVE": approve, "SEER_AGENT": agent}
    env = {variable: value for variable, value in given.items() if value is not None}
    check_agents(program, agent)
    check_approval(approve)
    check_room(runs_root(root), option="--runs or SEER_RUNS")
    code, made = run_program(program, arguments, root=root, env=env)
    show(made, code, again=f"seer run {shlex.quote(str(program))}")
    if not made and _is_interface(program):
        file = shlex.quote(str(program))
        hint = "this file is an interface, not a program; list it with"
        say(f"{hint}: seer check {file}", file=sys.stderr)
    return code


def _is_interface(program: Path) -> bool:
    """Whether the file exposes functions."""
    nodes = ast.walk(parsed(program.read_text(encoding="utf-8", errors="replace")))
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    used = [mark for function in functions for mark in function.decorator_list]
    return any(ast.unparse(mark).partition("(")[0] == "expose" for mark in used)


def _program(given: Path) -> Path:
    """The program's file; in a folder, its main.py."""
    file = given / "main.py" if given.is_dir() else given
    if file.is_file():
        return file
    if given.is_dir():
        where = "here" if given == Path() else f"in {str(given)!r}"
        raise click.UsageError(f"there is no main.py {where}; `seer init NAME` creates one")
    raise click.UsageError(f"there is no file {str(file)!r}; `seer init NAME` creates a program")


def run_program(
    program: Path,
    arguments: Sequence[str] = (),
    *,
    root: Path | None = None,
    env: Mapping[str, str] | None = None,
    python: Path | None = None,
) -> "tuple[int, list[RunSummary]]":
    """Run a program in its own folder.

    Args:
        program: The program's file.
        arguments: The program's arguments.
        root: The folder for records.
        env: Variables to add to this process's environment.
        python: The interpreter; by default that of this process.

    Returns:
        The program's exit code, and the runs that were recorded meanwhile, oldest first.
    """
    from seer.runs import RunFilter, RunIndex, runs_root

    records = runs_root(root)
    began = time.time()
    with _holding_interrupts() as interrupted:
        process = subprocess.Popen(
            [str(python or sys.executable), "-m", "seer._program", program.name, *arguments],
            cwd=program.absolute().parent,
            env={**os.environ, "SEER_RUNS": str(records), **(env or {})},
            preexec_fn=_prepare,
        )
        # The program gets Ctrl-C itself, ends its sandboxes, and closes its records. A Ctrl-C from
        # before the program started is forwarded.
        if interrupted():
            process.send_signal(signal.SIGINT)
        code = process.wait()
    made = RunIndex(records).list(RunFilter(since=began), descending=False, limit=1000)
    # As in a shell: 128 plus the signal's number.
    return (128 - code if code < 0 else code), made


@contextlib.contextmanager
def _holding_interrupts() -> Generator[Callable[[], bool]]:
    """Note Ctrl-C instead of raising, which could lose the child process or its exit code.

    Yields a function that says whether Ctrl-C was pressed.
    """
    pressed = False

    # Not an Event, which has a lock: a second Ctrl-C may interrupt this handler.
    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _prepare() -> None:
    """In the child process: block Ctrl-C until the program starts, and end with `seer run`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    if sys.platform == "linux":
        # If `seer run` is killed, the kernel interrupts the program as Ctrl-C does. Background
        # jobs of a shell ignore that signal, so they get SIGTERM.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        number = signal.SIGTERM if ignored else signal.SIGINT
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def show(made: "Sequence[RunSummary]", code: int, *, again: str) -> None:
    """List the recorded runs on standard error, because standard output is the program's.

    Args:
        made: The runs.
        code: The program's exit code.
        again: The command that starts the program again.
    """
    if code == INTERRUPTED and not made:
        say(f"interrupted: nothing was recorded; run again with: {again}", file=sys.stderr)
        return
    if not made:
        say("no run was recorded: the program did not reach run_agent", file=sys.stderr)
        return
    rows = [
        (run.short_id, run.status, run.turns or 0, run.tool_calls or 0, run.calls or 0)
        for run in made
    ]
    columns = ["run", "status", "turns", "tool calls", "gate calls"]
    table(columns, rows, file=sys.stderr)
    last = made[-1].short_id
    say(f"look at it: seer runs show {last}   or: seer view {last}", file=sys.stderr)
    if code == INTERRUPTED:
        say(f"interrupted: the record of {last} is kept; run again with: {again}", file=sys.stderr)
