"""The list of commands, and the exit code of each outcome.

`seer --help` imports only this module and click. A command's module is imported when the command
runs, and most of these modules import the library inside their functions.
"""

import importlib
import io
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click

from seer import __version__
from seer.cli._codes import FAILED, INTERRUPTED, OK
from seer.cli._interrupts import Presses
from seer.console import say
from seer.console._output import log_to_terminal
from seer.errors import SeerError

_SECTIONS: dict[str, dict[str, str]] = {
    "Start": {
        "demo": "Let a scripted agent study a small real model: no key, no GPU.",
        "init": "Create an experiment that is ready to run.",
        "doctor": "Show what works on this machine, and how to fix the rest.",
    },
    "Work": {
        "run": "Run an experiment and record everything.",
        "sweep": "Run an experiment across agents, tool sets, models and seeds.",
        "check": "Load an interface file in a jail, and list what it exposes.",
        "serve": "Serve an interface file, and print how to connect to it.",
        "shell": "Call an interface's functions by hand, as an agent would.",
        "mcp": "Let your own coding agent use an interface.",
        "organism": "Make a small model with a planted behaviour, and test it.",
    },
    "Records": {
        "runs": "List, show, compare, export and delete recorded runs.",
        "view": "Show runs live in the browser.",
        "replay": "Run a recorded experiment again, without its model.",
        "verify": "Check the claims of a run against the calls that they cite.",
        "judge": "Measure how well a judge agrees with labelled answers.",
    },
    "Machines": {
        "ps": "List running machines on all providers, with their costs.",
        "stop": "End machines.",
    },
}
"""The commands by section, with a line of help each. The command `ps` is in the module `_ps`."""
_WITH_MODELS = ("run", "sweep", "check", "serve", "shell", "mcp", "replay", "verify", "organism")
"""Commands that may load a model on this machine."""
_COMMANDS = [name for commands in _SECTIONS.values() for name in commands]


class _Lazy(click.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return _COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return importlib.import_module(f"seer.cli._{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], _COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "`seer --help` lists them."
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([*commands.items()])


@click.command(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  seer doctor                        what works here
  seer init my-study && seer run my-study
  seer check interface.py            what an agent could call
  seer runs list --status error      then: seer runs show RUN

\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 problems found, 130 interrupted
Shell completion: eval "$(_SEER_COMPLETE=bash_source seer)"  (or zsh_source)""",
)
@click.version_option(__version__, message="seer %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Show the library's log on standard error.")
@click.pass_obj
def app(presses: Presses | None, verbose: bool) -> None:
    """Give an AI agent a language model to study: a whole machine, or only functions you choose."""
    import logging

    level = logging.INFO if verbose else logging.WARNING
    log_to_terminal(level)
    if presses is not None:
        presses.command_runs()


def run(arguments: Sequence[str] | None, presses: Presses | None) -> int:
    """Run the command line; returns the exit code.

    Args:
        arguments: The arguments after `seer`; None reads them from `sys.argv`.
        presses: Handles Ctrl-C; None leaves Ctrl-C to the caller.
    """
    try:
        if arguments is None:
            # Options before the command take no value.
            words = (word for word in sys.argv[1:] if not word.startswith("-"))
            if next(words, None) in _WITH_MODELS:
                from seer.cli._demo_environment import go_there

                go_there(sys.argv[1:])
        outcome: Any = app.main(
            None if arguments is None else list(arguments),
            prog_name="seer",
            standalone_mode=False,
            obj=presses,
        )
    except (click.Abort, KeyboardInterrupt) as error:
        # click turns Ctrl-C into an Abort; its cause may say what was kept.
        words = str(error.__cause__ or error)
        say(f"interrupted: {words}" if words else "interrupted", file=sys.stderr)
        return INTERRUPTED
    except sqlite3.Error as error:
        # The index of the records failed, for example because the disk is full.
        say(f"error: the index of the records cannot be used: {error}", file=sys.stderr)
        return FAILED
    except click.ClickException as error:
        words = io.StringIO()
        error.show(file=words)
        say(words.getvalue(), file=sys.stderr, end="")
        return error.exit_code
    except SeerError as error:
        say(f"error: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        # The reader has closed the pipe; the rest of the output must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    except OSError as error:
        # A full disk, a folder that cannot be written, no descriptor left: the message says which.
        say(f"error: {error}", file=sys.stderr)
        return FAILED
    except Exception:  # a bug in Seer: show the traceback, through the filter
        say(traceback.format_exc(), file=sys.stderr)
        return FAILED
    return outcome if isinstance(outcome, int) else OK
