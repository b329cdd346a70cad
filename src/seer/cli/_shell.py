"""`seer shell`: call an interface's functions by hand, as an agent would."""

import code
import contextlib
import readline
import rlcompleter
import signal
import sys
from types import ModuleType
from typing import Any

import click

from seer.cli._options import machine_options
from seer.cli._target import Around, opened
from seer.console import say
from seer.console._output import filtered_output


@click.command(
    name="shell",
    epilog="""\b
Examples:
  seer shell interface.py --model ./gemma   a prompt with the functions
  seer shell ID                             ID from `seer serve --detach`
  echo 'print(count("a"))' | seer shell interface.py""",
)
@click.argument("target")
@machine_options
@click.option("--name", help="The interface to call, if the sandbox serves several.")
def command(target: str, name: str | None, **around: Any) -> int:
    """Call an interface's functions by hand, at a Python prompt with completion.

    TARGET is an interface file, or the id of a sandbox that serves one.
    """
    with opened(target, Around(**around), name=name) as served:
        module = served.library.connect()
        names = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        names[served.library.name] = module
        functions = [f.name for f in served.scoped.describe(served.library.name).functions]
        # The functions may return text from a model, and the user prints it here.
        with filtered_output():
            if not sys.stdin.isatty():
                return _script(sys.stdin.read(), names)
            _prompt(names, functions, module)
    return 0


def _script(source: str, names: dict[str, Any]) -> int:
    """Run the code from standard input; the first exception ends it."""
    console = code.InteractiveInterpreter(names)
    try:
        compiled = compile(source, "<stdin>", "exec")
    except SyntaxError:
        console.showsyntaxerror("<stdin>")
        return 1
    try:
        exec(compiled, names)
    except Exception:  # the user's own code: show the error as Python would
        console.showtraceback()
        return 1
    return 0


def _prompt(names: dict[str, Any], functions: list[str], module: ModuleType) -> None:
    say(f"{module.__doc__ or ''}".strip())
    say(f"\nYou can call: {', '.join(functions)}. help(name) explains one; Ctrl-D ends.\n")
    completer = rlcompleter.Completer(names)
    readline.set_completer(lambda text, state: _complete(completer, functions, text, state))
    readline.parse_and_bind("tab: complete")
    # At the prompt, every Ctrl-C cancels the current line or call.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = code.InteractiveConsole(names, "<seer>")
    with contextlib.suppress(SystemExit):
        console.interact(banner="", exitmsg="")


def _complete(
    completer: rlcompleter.Completer, functions: list[str], text: str, state: int
) -> str | None:
    """Complete an empty text to the exposed functions, and other text as Python does."""
    if not text:
        return f"{functions[state]}(" if state < len(functions) else None
    return completer.complete(text, state)
