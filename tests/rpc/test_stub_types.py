"""A type checker understands the generated library as it understands the interface."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seer.rpc._bundles import client_bundle
from seer.rpc.interface._load import load
from seer.rpc.interface._schema import Schema
from seer.rpc.library._stub import render

pytestmark = pytest.mark.full

INTERFACE = '''"""Tools."""
import dataclasses, datetime, enum
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NotRequired, Optional, TypedDict
import numpy as np
from seer.rpc import Handle

class Color(enum.Enum):
    RED = 1
    BLUE = "b"

class Access(enum.IntFlag):
    READ = 1
    WRITE = 2

@dataclasses.dataclass
class Part:
    size: float
    color: Color = Color.RED

@dataclasses.dataclass
class Whole:
    """All of it."""
    name: str
    parts: list[Part] = dataclasses.field(default_factory=list)
    inner: "Whole | None" = None
    when: datetime.date = datetime.date(2020, 1, 1)

class Choice(TypedDict):
    name: str
    size: NotRequired[int]

class Pair(NamedTuple):
    x: int
    y: str = "y"

SENTINEL = object()

@expose
def plain(text: str, k: int = 3, *, mode: Literal["a", "b"] = "a") -> dict[str, list[float]]:
    """Do something."""
@expose
def nothing() -> None: ...
@expose
def placed(a: int, b: str = "x", /, *rest: float, **more: bytes) -> tuple[int, ...]: ...
@expose
def records(
    whole: Whole, choice: Choice, pair: Pair, access: Access = Access.READ
) -> list[Whole]: ...
@expose
def unknown(x: object = SENTINEL, y: Optional[Color] = None): ...
@expose
def items(n: int) -> Iterator[Part]:
    """Some parts."""
    yield Part(1.0)
@expose
async def later(n: int) -> Pair | None: ...
@expose
async def trickle(n: int) -> AsyncIterator[bytes]:
    yield b""
@expose
def kept(values: np.ndarray, scale: Mapping[str, Sequence[int]] = {}) -> Handle[np.ndarray]: ...
@expose(batch=4)
def batched(texts: list[str], k: int = 3) -> list[dict[str, float]]: ...
'''

PROGRAM = """
from collections.abc import Iterator
from typing import Any

import numpy
from typing_extensions import assert_type

import tools
from tools import Color, Part, Whole

assert_type(tools.plain("x", mode="b"), dict[str, list[float]])
tools.plain("x", mode="c")  # error
tools.plain(3)  # error
tools.plain()  # error
tools.plain("x", kk=1)  # error
tools.nothing()
assert_type(tools.placed(1, "b", 1.0, 2.0, key=b""), tuple[int, ...])
tools.placed(a=1)  # error
whole = Whole("x", [Part(1.0, Color.RED)], inner=Whole("y"))
both = tools.Access.READ | tools.Access.WRITE
assert_type(tools.records(whole, {"name": "n"}, tools.Pair(1), both), list[Whole])
tools.records(whole, {"size": 1}, tools.Pair(1))  # error
assert_type(whole.parts[0].color, Color)
assert_type(tools.unknown(), Any)
assert_type(tools.items(3), Iterator[Part])
assert_type(tools.later(1), tools.Pair | None)
handle = tools.kept(numpy.zeros(3), {"a": [1]})
assert_type(handle, tools.Handle)
assert_type(handle.shape, tuple[int, ...] | None)
handle.nothing  # error
assert_type(tools.batched("one text"), dict[str, float])
tools.missing  # error
assert_type(tools.budget(), dict[str, Any])
assert_type(tools.last_call(), str)


async def main() -> None:
    assert_type(await tools.plain.aio("x", k=4), dict[str, list[float]])
    await tools.plain.aio(4)  # error
    assert_type([part async for part in tools.items.aio(3)], list[Part])
    assert_type(await tools.later.aio(1), tools.Pair | None)
    async for data in tools.trickle.aio(1):
        assert_type(data, bytes)
    assert_type([data for data in tools.trickle(1)], list[bytes])
"""


@pytest.mark.skipif(
    shutil.which("basedpyright", path=str(Path(sys.executable).parent)) is None,
    reason="basedpyright is not installed",
)
def test_a_type_checker_finds_just_the_mistakes(tmp_path: Path) -> None:
    (tmp_path / "interface.py").write_text(INTERFACE)
    interface = load(str(tmp_path / "interface.py"), "tools")
    for path, source in client_bundle().items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    for path, text in render(Schema.from_json(interface.schema())).items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    found = check(tmp_path, "program.py", "tools/__init__.pyi")
    assert [one for one in found if not one["file"].endswith("program.py")] == []
    lines = {one["range"]["start"]["line"]: one["message"] for one in found}
    expected = {
        number for number, line in enumerate(PROGRAM.splitlines()) if re.search("# error$", line)
    }
    assert lines.keys() == expected, lines


def check(folder: Path, *files: str) -> list[dict[str, Any]]:
    """The errors that the type checker finds in these files."""
    config = {"typeCheckingMode": "standard", "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [str(Path(sys.executable).with_name("basedpyright")), "--outputjson"]
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable, *files],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    diagnostics: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    return [one for one in diagnostics if one["severity"] == "error"]
