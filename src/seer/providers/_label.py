"""A machine's label: its purpose, in one line that every provider can store.

`seer ps` reads it: `scoped pid 4711 my-study/main.py model_0`.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_FORM = re.compile(
    r"(?P<kind>\S+) pid (?P<pid>\d+)(?: (?P<program>.*?\.py)(?!\S))?(?: (?P<models>.*))?"
)


@dataclass(frozen=True, kw_only=True)
class Label:
    """The parts of a label."""

    kind: str
    """`scoped`, `sandbox` or `session`; the whole label if Seer did not write it."""
    pid: int | None = None
    """The process that started the machine."""
    program: str = ""
    """The program's file name with its parent folder."""
    models: str = ""


def write_label(kind: str, models: Sequence[str] = ()) -> str:
    """The label of a machine that this process starts."""
    parts = [kind, f"pid {os.getpid()}", _program(), *models]
    return " ".join(part for part in parts if part)


def read_label(text: str) -> Label:
    """Parse a label. A label that Seer did not write becomes the kind."""
    found = _FORM.fullmatch(text)
    if found is None:
        return Label(kind=text)
    return Label(
        kind=found["kind"],
        pid=int(found["pid"]),
        program=found["program"] or "",
        models=found["models"] or "",
    )


def _program() -> str:
    """The file that this process runs; for a `seer` command, the file in its arguments."""
    name, *arguments = sys.argv or [""]
    if Path(name).name in ("seer", "__main__.py"):
        name = next((item for item in arguments if item.endswith(".py")), "")
    file = Path(name)
    return f"{file.absolute().parent.name}/{file.name}" if file.suffix == ".py" else ""
