"""A generated library in a separate process, with only the shipped parts of Seer."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from seer.rpc._bundles import client_bundle
from seer.rpc.interface._schema import Schema
from seer.rpc.library._stub import render
from tests.rpc.serving import Served, serving

pytestmark = pytest.mark.full

SOURCE = '''
    """Tools."""
    import enum
    from collections.abc import Iterator
    from dataclasses import dataclass, field
    from seer.rpc import Handle

    class Color(enum.Enum):
        RED = "red"

    @dataclass
    class Node:
        name: str
        color: Color = Color.RED
        children: "list[Node]" = field(default_factory=list)

    MARK = object()

    @expose
    def grow(node: Node, x: object = MARK) -> tuple[Node, bool]:
        """Grow a "node"."""
        return Node("parent", children=[node]), x is MARK

    @expose
    def echo(value: object) -> object:
        return value

    @expose
    def items(n: int) -> Iterator[Node]:
        for i in range(n):
            yield Node(str(i))

    @expose
    def fail(text: str) -> None:
        raise ValueError(text)

    @expose
    def make(n: int) -> Handle:
        return list(range(n))

    @expose
    def total(values: list[int]) -> int:
        return sum(values)

    @expose(batch=4)
    def length(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]
'''

AGENT = """
    import asyncio, inspect, math, sys
    import interface as tools
    assert not any(name == "seer" or name.startswith("seer.") for name in sys.modules)
    assert str(inspect.signature(tools.grow)) == (
        "(node: interface.Node, x: Any = ...) -> tuple[interface.Node, bool]"
    ), inspect.signature(tools.grow)
    assert inspect.getdoc(tools.grow) == 'Grow a "node".'

    node, default = tools.grow(tools.Node("child"))
    assert default and isinstance(node, tools.Node) and node.color is tools.Color.RED
    assert isinstance(node.children[0], tools.Node) and node.children[0].name == "child"
    assert tools.grow(node, x=1)[1] is False

    value = {"t": (1, {2: [3.5] * 100}), "b": b"\\0", "n": [math.inf, -0.0], "s": {1}, "$seer": "x"}
    assert tools.echo(value) == value
    assert math.isnan(tools.echo(math.nan))
    assert [n.name for n in tools.items(3)] == ["0", "1", "2"]
    assert tools.length("four") == 4

    async def use():
        both = await asyncio.gather(tools.echo.aio(1), tools.length.aio("abc"))
        return both, [n.name async for n in tools.items.aio(2)]
    assert asyncio.run(use()) == ([1, 3], ["0", "1"])

    try:
        tools.fail("no")
    except ValueError as error:
        assert "no" in str(error)
    else:
        raise AssertionError
    try:
        tools.total("abc")
    except TypeError as error:
        assert "parameter 'values': expected list[int], got str ('abc')" in str(error), error
    else:
        raise AssertionError
    try:
        tools.echo(object())
    except TypeError as error:
        assert "argument 1 is a object" in str(error), error
    else:
        raise AssertionError

    handle = tools.make(4)
    assert tools.total(handle) == 6 and handle.fetch() == [0, 1, 2, 3]
    assert "calls" in str(tools.budget())
    print("done")
"""


def run_agent(served: Served, folder: Path, script: str, *flags: str) -> str:
    """Run `script` with the library and the client's bundle, and return what it printed."""
    files = {path: source.read_text() for path, source in client_bundle().items()}
    schema = Schema.from_json(json.loads(json.dumps(served.gate().schema())))
    for path, text in (files | render(schema)).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    start = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    done = subprocess.run(
        [sys.executable, "-I", *flags, "-c", start + textwrap.dedent(script)],
        env={"SEER_GATE_INTERFACE": f"path:{served.socket_path('a')}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_library_works_with_the_standard_library_alone(tmp_path: Path) -> None:
    with serving(SOURCE) as served:
        assert run_agent(served, tmp_path, AGENT, "-S") == "done\n"


def test_tensors_and_frames_arrive_as_hinted(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = """
        import numpy as np, pandas as pd, torch
        @expose
        def hinted(t: torch.Tensor) -> torch.Tensor:
            return t.to(torch.bfloat16) * 2
        @expose
        def plain(t: np.ndarray) -> dict:
            return {"t": torch.from_numpy(t.copy()), "shape": t.shape}
        @expose
        def frame(f: pd.DataFrame) -> pd.DataFrame:
            return f * 2
    """
    agent = """
        import interface as tools
        import numpy, pandas
        assert "torch" not in sys.modules
        back = tools.plain(numpy.ones((2, 3), "f4"))
        assert type(back["t"]) is numpy.ndarray and back["shape"] == (2, 3)
        tensor = tools.hinted([1.5, 2.5])
        import torch
        assert torch.equal(tensor, torch.tensor([3.0, 5.0], dtype=torch.bfloat16))
        assert tools.hinted(torch.ones(300_000)).float().sum().item() == 600_000
        frame = pandas.DataFrame({"a": [1, 2]}, index=["x", "y"])
        assert tools.frame(frame).equals(frame * 2)
        print("done")
    """
    with serving(source) as served:
        assert run_agent(served, tmp_path, agent) == "done\n"
