"""`seer mcp`: let a user's own coding agent use an interface as MCP tools.

The printed configuration starts `seer mcp TARGET --stdio`, which serves the interface for as long
as the client keeps it running. With `--http`, this process itself is the server. It serves every
client that has its token, until Ctrl-C.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import click

from seer._files import replace_file
from seer._paths import cache_dir
from seer._sync import background_loop, run_sync
from seer.cli._options import machine_options
from seer.cli._serve import until_interrupted
from seer.cli._target import Around, interface_file, opened
from seer.console import say
from seer.mcp import CLIENTS, http_config, stdio_config
from seer.mcp._clients import TOKEN_VARIABLE
from seer.rpc.interface._schema import Schema

_WARNING = (
    "note: {client} has a shell and file tools of its own on this machine, so it is NOT scoped: "
    "besides calling the functions, it can read the interface, the model and your files. For an "
    "agent that can call the functions and nothing else, use seer.harness.run_agent."
)
_TOKEN_LENGTH = 16


@click.command(
    name="mcp",
    epilog="""\b
Examples:
  seer mcp interface.py --for claude > .mcp.json
  seer mcp interface.py --for codex >> ~/.codex/config.toml
  seer mcp interface.py --for gemini > .gemini/settings.json
  seer mcp ID --for cursor > .cursor/mcp.json   ID from `seer serve --detach`
  seer mcp ID --for vscode > .vscode/mcp.json
  seer mcp interface.py --http --for codex      one server for all clients""",
)
@click.argument("target")
@machine_options
@click.option("--name", help="The interface's name (default: the file's, without .py).")
@click.option(
    "--for",
    "client",
    type=click.Choice(list(CLIENTS)),
    default="claude",
    help="The client to print a configuration for (default: claude).",
)
@click.option("--stdio", is_flag=True, help="Run the MCP server on standard input and output.")
@click.option("--http", is_flag=True, help="Run the MCP server over HTTP on loopback.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="With --http: the port to listen on; 0 picks a free one.",
)
def command(
    target: str, name: str | None, client: str, stdio: bool, http: bool, port: int, **around: Any
) -> int:
    """Print the MCP configuration that lets a coding agent use an interface.

    TARGET is an interface file, or the id of a sandbox that serves one. With --http, this
    command also runs the server that the configuration names. The server's token is
    $SEER_MCP_TOKEN; if that is not set, the command prints a new token.
    """
    if stdio and http:
        raise click.UsageError("use either --stdio or --http, not both")
    if stdio:
        return _serve_stdio(target, name, Around(**around))
    if http:
        return _serve_http(target, name, Around(**around), client=client, port=port)
    arguments = ["mcp", _absolute(target), "--stdio", *_options(name, around)]
    label = _label(target, name)
    seer = shutil.which("seer")
    program = [seer] if seer else [sys.executable, "-m", "seer"]
    say(stdio_config(client, label, program[0], [*program[1:], *arguments]))
    say(_WARNING.format(client=CLIENTS[client]), file=sys.stderr)
    return 0


def _serve_stdio(target: str, name: str | None, around: Around) -> int:
    """Answer the client at once, and load the interface meanwhile.

    MCP clients wait only seconds for a server to start, but a model may take minutes to load. If
    the client goes away earlier, this process ends, and the loading ends with it.
    """
    from seer.mcp._open import open_loading_server

    loading = _Loading(_absolute(target), name, around)
    interface = asyncio.wrap_future(loading.served, loop=background_loop())
    server = run_sync(open_loading_server(_label(target, name), loading.known, interface))
    loading.start()
    (entry,) = server.mcp_config.values()
    try:
        # The relay uses this process's streams; this process keeps serving and cleans up.
        code = subprocess.run([entry["command"], *entry["args"]], check=False).returncode
    finally:
        run_sync(server.close())
        loading.stop()
    return code


def _serve_http(target: str, name: str | None, around: Around, *, client: str, port: int) -> int:
    """Print a client's configuration, and serve until Ctrl-C or until loading fails."""
    from seer.mcp import open_http_server

    given = os.environ.get(TOKEN_VARIABLE, "")
    if given and len(given) < _TOKEN_LENGTH:
        raise click.UsageError(
            f"${TOKEN_VARIABLE} has {len(given)} characters and needs at least {_TOKEN_LENGTH}; "
            "unset it to get a new token"
        )
    token = given or secrets.token_urlsafe(32)
    label = _label(target, name)
    loading = _Loading(_absolute(target), name, around)
    interface = asyncio.wrap_future(loading.served, loop=background_loop())
    server = run_sync(open_http_server(label, loading.known, interface, port=port, token=token))
    over = SimpleQueue[None]()
    loading.served.add_done_callback(lambda served: served.exception() is None or over.put(None))
    loading.start()
    try:
        say(http_config(client, label, server.url))
        say(_WARNING.format(client=CLIENTS[client]), file=sys.stderr)
        say(f"Serving {label} at {server.url}; Ctrl-C ends it.", file=sys.stderr)
        if not given:
            say(f"Start the client with: export {TOKEN_VARIABLE}={token}", file=sys.stderr)
        until_interrupted(over)
    finally:
        run_sync(server.close())
        loading.stop()
    if loading.served.done():
        loading.served.result()
    return 0


def _label(target: str, name: str | None) -> str:
    return name or (Path(target).stem if target.endswith(".py") else target)


class _Loading(threading.Thread):
    """Serves the target in a thread of its own, until `stop` is called.

    Attributes:
        served: The interface once it is loaded, or the error.
        known: The interface's schema from the last time that the same file was served, or None.
    """

    def __init__(self, target: str, name: str | None, around: Around) -> None:
        super().__init__(name="seer-mcp-loading", daemon=True)
        self._target, self._name, self._around = target, name, around
        self._stopping = threading.Event()
        self.served: Future[Any] = Future()
        file = Path(target)
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        self._note = cache_dir() / "schemas" / f"{digest[:32]}.json" if digest else None
        self.known = self._read()

    def run(self) -> None:
        """Serve the target, cache its schema, and wait for `stop`."""
        try:
            with opened(self._target, self._around, name=self._name) as found:
                served: Any = found.library.gate
                self._write(served.schema)
                self.served.set_result(served)
                self._stopping.wait()
        except BaseException as error:  # for the thread that waits for `served`
            if self.served.done():
                raise
            self.served.set_exception(error)

    def stop(self) -> None:
        """End the interface. If it is still loading, it ends with this process."""
        self._stopping.set()
        if self.served.done():
            self.join()

    def _read(self) -> Schema | None:
        if self._note is None:
            return None
        try:
            return Schema.from_json(json.loads(self._note.read_text()))
        except (OSError, ValueError):
            return None

    def _write(self, schema: Schema) -> None:
        if self._note is not None:
            # A cache for the next start; failing to write it is harmless.
            with contextlib.suppress(OSError):
                self._note.parent.mkdir(exist_ok=True)
                replace_file(self._note, json.dumps(schema.to_json()))


def _absolute(target: str) -> str:
    file = interface_file(target)
    return target if file is None else str(file.absolute())


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
