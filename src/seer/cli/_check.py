"""`seer check`: load an interface file in a jail, list what it exposes, and warn about problems."""

import ast
import dataclasses
import inspect
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seer._redact import CREDENTIAL, is_secret_name
from seer._transient import TransientFolder
from seer.cli._codes import FOUND
from seer.cli._interrupts import Interrupted
from seer.cli._options import interface_argument, json_option, machine_options
from seer.cli._preflight import parsed
from seer.cli._target import Around, started
from seer.console import say, say_json, table

if TYPE_CHECKING:
    from seer.environment import InterfaceDescription

# Too short for a secret, several words, or a placeholder.
_HARMLESS = re.compile(r"(?i)^(.{0,7}|.*\s.*|\*+|x+|\.+|<.*>|\$\{?\w+\}?|changeme|your[-_].*)$")


@click.command(
    name="check",
    epilog="""\b
Examples:
  seer check interface.py            a tiny random model replaces the real one
  seer check interface.py --model ./gemma --package einops
  seer check interface.py --json | jq '.functions[].signature'

\b
Exit code 3: the file can be served, but problems were found.""",
)
@interface_argument
@machine_options
@click.option("--name", help="The interface's name (default: the file's, without .py).")
@click.option(
    "--tiny",
    is_flag=True,
    help="Replace the models that the file names by tiny random ones (the default without "
    "--model).",
)
@json_option
def command(interface: Path, name: str | None, tiny: bool, as_json: bool, **around: Any) -> int:
    """Load an interface file in a jail; list what an agent could call, and any problems."""
    try:
        found, doubts = _examined(interface, around, name=name, tiny=tiny)
    except KeyboardInterrupt:
        again = f"seer check {shlex.quote(str(interface))}"
        raise Interrupted(
            f"nothing is left running, and nothing was kept; run again with: {again}"
        ) from None
    doubts += [*found.warnings, *_undocumented(found)]
    if as_json:
        say_json({**dataclasses.asdict(found), "warnings": doubts})
    else:
        _show(interface, found, doubts)
    return FOUND if doubts else 0


def _examined(
    interface: Path, around: dict[str, Any], *, name: str | None, tiny: bool
) -> "tuple[InterfaceDescription, list[str]]":
    """What an interface file exposes, and the problems that its source shows."""
    source = interface.read_text(encoding="utf-8", errors="replace")
    with TransientFolder("check") as scratch:
        if tiny or not around["models"]:
            named = stand_ins(source, scratch)
            around["models"] = tuple(dict.fromkeys((*around["models"], *named)))
            if named and not tiny:
                what = f"{len(named)} tiny random models" if named[1:] else "a tiny random model"
                say(f"using {what}; --model uses a real one", file=sys.stderr)
        with started(interface, Around(**around), name=name) as served:
            return served.scoped.describe(served.library.name), secrets_in(source)


def secrets_in(source: str) -> list[str]:
    """Warnings about lines that seem to hold a secret. They do not repeat its value."""
    doubts: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        if CREDENTIAL.search(line):
            doubts.append(f"line {number} seems to hold a key; use SandboxConfig.secrets instead")
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            continue
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        telling = [name for name in names if is_secret_name(name)]
        if isinstance(value, str) and telling and not _HARMLESS.match(value):
            told = f"line {node.lineno}: {telling[0]} is a string literal"
            if not any(doubt.startswith(f"line {node.lineno} ") for doubt in doubts):
                doubts.append(f"{told}; if it is a secret, use SandboxConfig.secrets instead")
    return doubts


def stand_ins(source: str, folder: Path) -> list[str]:
    """Make a tiny random model for each name that a file passes to `get_model_path("...")`.

    A file that uses `list_configured_models` gets one more, `tiny/model`. `SEER_MODEL_ALIASES`
    maps the names to the models. Returns the names.
    """
    names: list[str] = []
    nodes = list(ast.walk(parsed(source)))
    if any(isinstance(node, ast.Name) and node.id == "list_configured_models" for node in nodes):
        names.append("tiny/model")
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("get_model_path"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                names.append(first.value)
    names = list(dict.fromkeys(names))
    if names:
        _make(names, folder)
    return names


def _make(names: Sequence[str], folder: Path) -> None:
    from seer.environment.prepare._preparer import logger
    from seer.testing import make_tiny_model

    aliases = [os.environ.get("SEER_MODEL_ALIASES", "")]
    for index, name in enumerate(names):
        aliases.append(f"{name}={make_tiny_model(folder / f'tiny-{index}')}")
    os.environ["SEER_MODEL_ALIASES"] = ",".join(alias for alias in aliases if alias)
    # The user did not set these aliases, so a warning about them would only confuse.
    logger.addFilter(lambda record: str(folder) not in record.getMessage())


def _undocumented(found: "InterfaceDescription") -> list[str]:
    return [
        f"{function.name}() has no docstring; agents see only its signature"
        for function in found.functions
        if not function.doc.strip()
    ]


def _show(interface: Path, found: "InterfaceDescription", doubts: list[str]) -> None:
    rows = [
        (function.signature, inspect.cleandoc(function.doc).split("\n")[0], _options(function))
        for function in found.functions
    ]
    table(["function", "description", "options"], rows, title=f"{interface} exposes:")
    for doubt in doubts:
        say(f"problem: {doubt}")
    if not doubts:
        say("no problems found")


def _options(function: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in function.options.items())
