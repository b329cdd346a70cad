"""Escape sequences that an agent, a model or a package wrote never reach a terminal."""

import dataclasses
import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any, cast, get_type_hints

import pytest

import seer.harness
from seer.events import Event, TextBlock, ToolInfo
from seer.runs import GateCall, RunRecord, new_run_id

# A title, the clipboard, a link, a reset, colours, C1 forms of these, a bidirectional override,
# rich's markup, a lone surrogate (from a name that is not UTF-8), and a query that the terminal
# answers as if somebody had typed.
SEQUENCES = [
    *(
        "\x1b]0;planted\x07",
        "\x1b]52;c;cGxhbnRlZA==\x07",
        "\x1b]8;;http://evil.test\x1b\\x\x1b]8;;\x1b\\",
    ),
    *("\x1bc", "\x1b[2J\x1b[45m", "\x9b2J", "\x9d0;planted\x9c", "\x90q\x9c", "\x1bP+q544e\x1b\\"),
    *("\u202egnp.exe", "[link=http://evil.test]click[/link]", "\x08\x08\x7f", "\rfaked", "\x05"),
    "\u2066x\u2069 \ufeff \U000e0041",
]
HOSTILE = " ".join(SEQUENCES)
FORBIDDEN = re.compile(
    r"\x1b\][^\r]|\x1bc|\x1bP|\x1b\\|\x1b\[2J|\x1b\[45m|[\x00-\x06\x07\x08\x0b\x0c\x0e-\x1a\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]|\rfaked"
)


def planted(hint: Any) -> Any:
    """A hostile value for a field."""
    if hint == tuple[ToolInfo, ...]:
        return (ToolInfo(name=HOSTILE, server=HOSTILE, description=HOSTILE),)
    if "Block" in str(hint):
        return (TextBlock(text=HOSTILE),)
    if "Mapping" in str(hint):
        return {HOSTILE: HOSTILE}
    if "str" in str(hint) or "Any" in str(hint) or "Literal" in str(hint):
        return HOSTILE
    return 1 if hint in (int, float, bool) else None


def make_run(root: Path, extra: str = "") -> str:
    """A run in which every text is hostile, in every field that the event classes have."""
    texts = dict.fromkeys(("provider", "model", "task", "name", "prompt", "result"), HOSTILE)
    program = {"argv": [HOSTILE], "cwd": HOSTILE}
    meta = {**texts, HOSTILE: HOSTILE, "program": program, "error": HOSTILE + extra}
    record = RunRecord.create(root, new_run_id(), meta=meta)
    kinds: list[Any] = [getattr(seer.harness, name) for name in seer.harness.__all__]
    kinds = [k for k in kinds if isinstance(k, type) and issubclass(k, Event) and k is not Event]
    for kind in kinds:
        hints = get_type_hints(kind)
        values = {f.name: planted(hints[f.name]) for f in dataclasses.fields(kind)}
        values = {k: v for k, v in values.items() if v is not None and k != "raw"}
        record.event(kind(**values).to_json())
    claim = {"text": HOSTILE, "calls": [HOSTILE], "controls": [HOSTILE]}
    answer = {"found": True, "answer": {HOSTILE: HOSTILE}, "claims": [claim]}
    record.event(seer.harness.Text(text=json.dumps(answer) + extra).to_json())
    hints = get_type_hints(GateCall)
    names = [f.name for f in dataclasses.fields(GateCall) if hints[f.name] in (str, str | None)]
    texts = cast("dict[str, Any]", dict.fromkeys(names, HOSTILE))
    record.call(GateCall(**texts).to_json())
    record.close("error")
    return record.run_id


INTERFACE = '''
@expose
def speak(text: str = {text!r}) -> str:
    """{text}"""
    return TEXT

@expose
def fail() -> str:
    raise ValueError(TEXT)

TEXT = {text!r}
'''


def plant(folder: Path) -> tuple[str, str]:
    """Everything that the commands read."""
    (folder / "text").write_text(HOSTILE)
    first, second = (make_run(folder / "runs", extra) for extra in ("", "2"))
    source = INTERFACE.replace("{text!r}", ascii(HOSTILE))
    (folder / "interface.py").write_text(source.replace("{text}", ascii(HOSTILE)[1:-1]))
    (folder / "broken.py").write_text(f"raise ValueError({ascii(HOSTILE)})\n")
    (folder / "program.py").write_text(
        f"from seer.errors import CommandFailedError\n"
        f"raise CommandFailedError('x', 1, '', {ascii(HOSTILE)})\n"
    )
    (folder / "typed").write_text("print(speak())\nspeak()\nfail()\n")
    (folder / "cell.py").write_text(f"import sys\nsys.exit({ascii(HOSTILE)})\n")
    (folder / "matrix.toml").write_text(f"tools = [{json.dumps(HOSTILE[:-1])}]\nseeds = 1\n")
    return first, second


def on_terminal(arguments: list[str], env: dict[str, str]) -> str:
    """Run a program in a new terminal; returns everything that the terminal received."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 2000))
    process = subprocess.Popen(
        arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    os.write(ours, b"n\n" * 8)  # to every question
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    return shown.decode("utf-8", "surrogateescape")


@pytest.mark.full
def test_no_command_passes_escape_sequences_on_to_a_terminal(tmp_path: Path) -> None:
    first, second = plant(tmp_path)
    program = str(Path(__file__).with_name("on_a_terminal.py"))
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\ncat {tmp_path / 'text'}\n")
    fake.chmod(0o755)
    env = {
        **os.environ,
        "SEER_RUNS": str(tmp_path / "runs"),
        "SEER_PROGRESS": "auto",
        "SEER_PROVIDER": "local",
        "TERM": "xterm",
        # Wide, so that no table cuts or wraps what was planted.
        "COLUMNS": "400",
        "HF_ENDPOINT": HOSTILE,
        "PATH": f"{fake.parent}:{os.environ['PATH']}",
    }
    shown = on_terminal([sys.executable, program, str(tmp_path), first, second], env)
    (tmp_path / "shown").write_text(shown, errors="surrogateescape")
    parts = re.split(r"<command \d+: (.*?)>\r\n", shown)
    commands = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert shown.rstrip().endswith(">"), shown[-2000:]
    passed = {
        command: sorted({ascii(text[max(0, m.start() - 40) : m.end() + 20]) for m in found})
        for command, text in commands.items()
        if (found := list(FORBIDDEN.finditer(text)))
    }
    assert not passed, json.dumps(passed, indent=2)
    silent = [c for c, t in commands.items() if "planted" not in t and "evil.test" not in t]
    nothing_to_show = ("['runs', 'export'", "['runs', 'delete'", "['view'", "['stop'")
    assert not [command for command in silent if not command.startswith(nothing_to_show)]
