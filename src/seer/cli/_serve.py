"""`seer serve`: serve an interface without a program, for scripts, `curl` and MCP clients."""

import json
import shlex
import signal
import sys
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import click

from seer.cli._interrupts import Interrupted
from seer.cli._options import interface_argument, json_option, machine_options
from seer.cli._target import Around, Opened, started
from seer.console import say, say_json, table


@click.command(
    name="serve",
    epilog="""\b
Examples:
  seer serve interface.py --model google/gemma-2-9b --gpu A100
  seer serve interface.py --detach     then: seer shell ID, seer stop ID""",
)
@interface_argument
@machine_options
@click.option("--name", help="The interface's name (default: the file's, without .py).")
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    help="Copies of the interface, each on its own GPU (default: 1).",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Keep the interface running, with its model loaded, after this command ends.",
)
@json_option
def command(
    interface: Path,
    name: str | None,
    replicas: int,
    detach: bool,
    as_json: bool,
    **around: Any,
) -> None:
    """Serve an interface file until Ctrl-C (or, with --detach, until `seer stop`)."""
    detached = ""
    try:
        with started(interface, Around(**around), name=name, replicas=replicas) as served:
            if detach:
                served.scoped.detach()
                detached = served.scoped.sandbox_id
            ways = ways_in(served, detached=detach)
            if as_json:
                say_json(ways)
            else:
                _show(ways, served, detached=detach)
            if not detach:
                until_interrupted(SimpleQueue())
    except KeyboardInterrupt:
        if detached:
            raise Interrupted(f"it keeps running; end it with: seer stop {detached}") from None
        raise Interrupted(
            "nothing was served, and nothing is left running; the same command starts again"
        ) from None


def ways_in(served: Opened, *, detached: bool) -> dict[str, Any]:
    """How to reach a served interface: socket, Python, curl and MCP."""
    from seer._sync import run_sync

    gate = served.library.gate
    assert gate is not None, "a served library has a gate"
    socket = run_sync(gate.open_caller("seer serve")).path
    name, sandbox_id = served.library.name, served.scoped.sandbox_id
    function = served.scoped.describe(name).functions[0].name
    mcp = {name: {"type": "stdio", "command": "seer", "args": ["mcp", sandbox_id, "--stdio"]}}
    return {
        "sandbox_id": sandbox_id,
        "name": name,
        "socket": str(socket),
        "python": [
            "from seer.rpc.client import connect",
            f"{name} = connect({name!r}, {f'path:{socket}'!r})",
            f"{name}.call({function!r}, [...])",
        ],
        "curl": f"curl --unix-socket {shlex.quote(str(socket))} "
        f"http://gate/v1/call/{function} -d '{{\"args\": [...]}}'",
        "mcp": mcp if detached else served.scoped.present(name, "mcp"),
    }


def _show(ways: dict[str, Any], served: Opened, *, detached: bool) -> None:
    say(f"\n{ways['name']} is served by sandbox {ways['sandbox_id']}:\n")
    described = served.scoped.describe(ways["name"])
    for function in described.functions:
        say(f"  {function.signature}")
    if described.copies:
        say(f"\nin {len(described.copies)} copies:\n")
        rows = [
            (str(copy.copy), copy.state, str(copy.pid), copy.gpu or "-", str(copy.running))
            for copy in described.copies
        ]
        table(["copy", "state", "pid", "gpu", "running"], rows)
    say("\nfrom Python:\n")
    for line in ways["python"]:
        say(f"  {line}")
    say(f"\nfrom a shell:\n\n  {ways['curl']}\n\nas MCP tools:\n")
    say("  " + json.dumps({"mcpServers": ways["mcp"]}))
    if detached:
        say(f"\nIt keeps running. Try it: seer shell {ways['sandbox_id']}")
        say(f"End it: seer stop {ways['sandbox_id']}")
    else:
        say("\nCtrl-C ends it.")


def until_interrupted(over: SimpleQueue[None]) -> None:
    """Wait for Ctrl-C, a signal to end, or an item in `over`.

    An Event cannot be set in a signal handler: the handler may interrupt the code that holds the
    event's lock. A SimpleQueue has no such lock.
    """

    def end(number: int, frame: FrameType | None) -> None:
        over.put(None)

    signal.signal(signal.SIGTERM, end)
    try:
        over.get()
    except KeyboardInterrupt:
        say("\ninterrupted: the sandbox ends; the same command serves again", file=sys.stderr)
