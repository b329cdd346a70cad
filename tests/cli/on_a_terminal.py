"""A program for a real terminal: every command over hostile records. Prints a mark per command."""

import sys
import time
from pathlib import Path
from typing import Any

from seer.cli import main
from seer.cli._app import _COMMANDS  # pyright: ignore[reportPrivateUsage]
from seer.providers import MachineStatus


def commands(folder: Path, first: str, second: str) -> list[list[str]]:
    """The command lines to run; each names something in the planted folder."""
    interface = str(folder / "interface.py")
    into = ["--into", str(folder / "sweep")]
    return [
        ["--verbose", "runs", "list"],
        ["runs", "list", "--json"],
        ["runs", "show", first],
        ["runs", "show", first, "--calls"],
        ["runs", "show", first, "--json"],
        ["runs", "show", first, "--calls", "--json"],
        ["runs", "show", "no\x1b]0;planted\x07such"],
        ["runs", "diff", first, second],
        ["runs", "diff", first, second, "--json"],
        ["runs", "export", first, str(folder / "exported.eval")],
        ["runs", "delete", second],
        ["verify", first],
        ["verify", first, "--json"],
        ["replay", first],
        ["view", "--share", first, "-o", str(folder / "shared.html")],
        ["sweep", str(folder / "cell.py"), "--matrix", str(folder / "matrix.toml"), *into],
        ["sweep", *into, "--json"],
        ["run", str(folder / "program.py")],
        ["check", interface],
        ["check", str(folder / "broken.py")],
        ["mcp", interface, "--name", "planted\x1b]0;planted\x07"],
        ["shell", interface],
        ["serve", interface, "--detach"],
        ["stop", "--all", "--yes"],
        ["ps"],
        ["ps", "--json"],
        ["stop", "--all"],
        ["doctor"],
        ["doctor", "--json"],
        ["init", str(folder / "\x1b]0;planted\x07")],
        ["judge", "planted\x1b]0;planted\x07"],
        ["organism", "planted\x1b]0;planted\x07"],
        ["demo", "--planted\x1b]0;planted\x07"],
        ["planted\x1b]0;planted\x07"],
    ]


def plant_machines(text: str) -> None:
    """Have every provider report a machine with a hostile label, and a hostile failure."""
    import seer.cli._machines as machines
    import seer.cli._ps as ps
    import seer.cli._stop as stop

    shown = MachineStatus(
        id=f"m-{text}",
        provider="local",
        label=text,
        started_at=time.time(),
        gpu=text,
        detached=True,
        controller_alive=False,
    )
    found = machines.Running([shown], {text: text})
    for module in (ps, stop):
        vars(module)["running"] = lambda providers: found  # pyright: ignore[reportUnknownLambdaType]


def run_all(folder: Path, text: str, first: str, second: str) -> None:
    """Run the commands one after the other."""
    lines = commands(folder, first, second)
    assert set(_COMMANDS) == {w for line in lines for w in line if w in _COMMANDS}
    standard_input: Any = sys.stdin
    for number, line in enumerate(lines):
        if line == ["ps"]:
            plant_machines(text)
        if line[0] == "shell":
            sys.stdin = (folder / "typed").open()
        sys.stdout.write(f"<command {number}: {ascii(line)}>\n")
        sys.stdout.flush()
        code = main(line)
        sys.stdin = standard_input
        sys.stdout.write(f"<exit {code}>\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), Path(sys.argv[1], "text").read_text("utf-8"), *sys.argv[2:])
