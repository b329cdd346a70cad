"""Only `seer.console` writes to standard output and standard error."""

import ast
from pathlib import Path

import seer

ROOT = Path(seer.__file__).parent

# The other files that may print, and why.
ALLOWED = {
    "_program.py": "shows the errors of a person's program, as Python does",
    "cli/__init__.py": "Ctrl-C before the console can be imported",
    "cli/_interrupts.py": "signal handlers, which write without a buffer",
    "cli/template": "a program of the user's; it prints with seer.console.say",
    "environment/models/_fetch.py": "a program whose output its parent reads as a protocol",
    "execution/_inside": "runs in a jail",
    "inspect/__main__.py": "a person's terminal in a sandbox, which programs there draw on",
    "isolation/backends/_launcher.py": "runs in a jail",
    "mcp/_relay.py": "a program of its own, without Seer; prints what Seer's own process says",
    "providers/agent": "runs in a jail",
    "providers/remote/onhost": "runs on another host; its output is read as a protocol",
    "providers/rented/rental_monitor.py": "runs on a rented machine",
    "rpc/replicas": "runs beside the model",
    "rpc/server": "runs in a sandbox; what it prints is read by the controller",
    "sweeps/_supervisor.py": "a program whose output its parent reads as a protocol",
}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
PRINTERS = {
    *("click.echo", "click.secho", "click.prompt", "click.confirm", "click.echo_via_pager"),
    *("logging.StreamHandler", "logging.basicConfig", "traceback.print_exc", "pprint.pprint"),
    *(
        "traceback.print_exception",
        "traceback.print_stack",
        "sys.excepthook",
        "faulthandler.enable",
    ),
}


def offences(file: Path) -> list[str]:
    """Where a file prints by itself."""
    found: list[str] = []
    tree = ast.parse(file.read_text(encoding="utf-8"))
    harmless = {
        id(inner)
        for node in ast.walk(tree)
        for inner in (
            # `say(..., file=sys.stderr)`, and asking whether there is a terminal.
            [k.value for k in node.keywords if k.arg == "file"]
            if isinstance(node, ast.Call)
            else [node.value]
            if isinstance(node, ast.Attribute) and node.attr == "isatty"
            else []
        )
    }
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, (ast.Attribute, ast.Name)) else ""
        if (
            (isinstance(node, ast.Name) and text == "print")
            or text in PRINTERS
            or (text in {f"sys.{name}" for name in STREAMS} and id(node) not in harmless)
            or (isinstance(node, ast.ImportFrom) and node.module == "sys")
            or (
                isinstance(node, ast.Call)
                and ast.unparse(node)[:11] in ("os.write(1,", "os.write(2,")
            )
        ):
            found.append(f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    return found


def test_nothing_but_the_console_prints() -> None:
    wrong: list[str] = []
    unused = set(ALLOWED)
    for file in sorted(ROOT.rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        if name.startswith("console/"):
            continue
        found = offences(file)
        owner = next((place for place in ALLOWED if name.startswith(place)), None)
        if owner is None:
            wrong += found
        elif found or owner == "cli/template":
            unused.discard(owner)
    assert not wrong, f"print with seer.console: {wrong}"
    assert not unused, f"these print nothing any more: {sorted(unused)}"


def test_only_the_console_knows_rich() -> None:
    users = {
        file.relative_to(ROOT).parts[0]
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
        if name.split(".")[0] == "rich"
    }
    assert users == {"console"}
