"""`seer mcp`: let a person's own coding agent use an interface as MCP tools.

The printed configuration starts `seer mcp TARGET --stdio`, which serves the interface for as long
as the client keeps it running.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from seer.cli._options import machine_options
from seer.cli._target import Around, opened
from seer.console import say

_WARNING = (
    "note: {client} has a shell and file tools of its own on this machine, so it is NOT scoped: "
    "it can read the interface, the model and your files beside calling the functions. For an "
    "agent that can call the functions and do nothing else, use seer.harness.run_agent."
)
_CLIENTS = {"claude-code": "Claude Code", "codex": "Codex", "cursor": "Cursor"}


@click.command(
    name="mcp",
    epilog="""\b
Examples:
  seer mcp interface.py --for claude-code > .mcp.json
  seer mcp interface.py --for codex >> ~/.codex/config.toml
  seer mcp ID --for cursor > .cursor/mcp.json    ID: from `seer serve --detach`""",
)
@click.argument("target")
@machine_options
@click.option("--name", help="What the interface is called (default: the file's stem).")
@click.option(
    "--for",
    "client",
    type=click.Choice(list(_CLIENTS)),
    default="claude-code",
    help="Whose configuration to print.",
)
@click.option("--stdio", is_flag=True, help="Be the MCP server, on standard input and output.")
def command(target: str, name: str | None, client: str, stdio: bool, **around: Any) -> int:
    """Print the MCP configuration with which a coding agent can use an interface.

    TARGET is an interface file, or the id of a sandbox that serves one.
    """
    if stdio:
        return _serve(target, name, Around(**around))
    arguments = ["mcp", _absolute(target), "--stdio", *_options(name, around)]
    label = name or (Path(target).stem if target.endswith(".py") else target)
    seer = shutil.which("seer")
    program = [seer] if seer else [sys.executable, "-m", "seer"]
    entry = {"command": program[0], "args": [*program[1:], *arguments]}
    if client == "codex":
        # A JSON text or list is a TOML value as it stands.
        say(f"[mcp_servers.{json.dumps(label)}]")
        say(f"command = {json.dumps(entry['command'])}\nargs = {json.dumps(entry['args'])}")
    else:
        kind = {"type": "stdio"} if client == "claude-code" else {}
        say(json.dumps({"mcpServers": {label: {**kind, **entry}}}, indent=2))
    say(_WARNING.format(client=_CLIENTS[client]), file=sys.stderr)
    return 0


def _serve(target: str, name: str | None, around: Around) -> int:
    with opened(target, around, name=name) as served:
        (entry,) = served.mcp_config().values()
        # The relay takes this process's streams; what is served, and its end, stay with us.
        return subprocess.run([entry["command"], *entry["args"]], check=False).returncode


def _absolute(target: str) -> str:
    file = Path(target)
    if file.is_file():
        return str(file.absolute())
    if file.suffix == ".py" or "/" in target:
        raise click.UsageError(f"there is no file {target!r}")
    return target


def _options(name: str | None, around: dict[str, Any]) -> list[str]:
    options: list[str] = ["--name", name] if name else []
    for model in around["models"]:
        options += ["--model", str(Path(model).absolute()) if Path(model).is_dir() else model]
    for package in around["packages"]:
        options += ["--package", package]
    if around["hidden"]:
        options.append("--hidden")
    for key, usual in (("gpu", None), ("isolation", "auto"), ("provider", None)):
        if around[key] != usual:
            options += [f"--{key}", around[key]]
    return options
