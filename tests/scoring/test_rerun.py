"""Cited calls run again through a live gate, and a changed answer is noticed."""

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from seer import interfaces
from seer.cli import main
from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
from seer.errors import ConfigError
from seer.execution import acreate_local_session
from seer.harness import Call, RunFinished, Scripted, Step, run_agent
from seer.runs import GateCall, Run, open_run
from seer.scoring import Verification, rerun_through, verify
from seer.workspace import Library, Workspace
from tests.interfaces.conftest import make

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

INTERFACE = """
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
from seer.rpc import Handle

runs = 0

class Mode(Enum):
    ADD = "add"
    SET = "set"

@dataclass
class Change:
    direction: np.ndarray
    mode: Mode = Mode.ADD
    span: tuple[int, int] | None = None

@dataclass
class Reading:
    word: str
    scores: list[float]
    vector: np.ndarray | None = None

@expose
def read(word: str, *, scale: float = 1.0) -> Reading:
    if not word:
        raise ValueError("no word")
    return Reading(word, [len(word) * scale, 0.5])

@expose
def between(ends: tuple[int, float], names: dict[int, str] | None = None) -> tuple[float, str]:
    return ends[1] - ends[0], str(names)

@expose
def steer(word: str, changes: list[Change]) -> Reading:
    total = sum((c.direction for c in changes), np.zeros(4000))
    return Reading(word + changes[0].mode.value, [float(total.sum())], total)

@expose
def parts(values: np.ndarray) -> dict[str, np.ndarray | float]:
    return {"half": values / 2, "odd": np.array([np.nan, np.inf, 1.0]), "nan": float("nan")}

@expose
def many(count: int) -> list[float]:
    return [float("nan")] + [n / 7 for n in range(count)]

@expose
def reverse(data: bytes) -> bytes:
    return data[::-1]

@expose
def others() -> dict:
    return {1: {"a", "b"}, (2, 3): 1j, "none": None, "big": 10**30}

@expose
def keep(values: np.ndarray) -> Handle:
    return values * 2

@expose
def both(values: Handle) -> list[Handle]:
    return [Handle(values.value + 1), Handle(values.value + 2)]

@expose
def total(values: np.ndarray, scale: float = 1.0) -> float:
    return float(values.sum()) * scale

@expose
def site(layer: int | str, options: dict[str, bool | float | str] | None = None) -> str:
    return f"{layer!r} {options!r}"

@expose
def named(which: str | Handle) -> float:
    return float(len(which)) if isinstance(which, str) else float(which.value.sum())

@expose
def stream(count: int) -> Iterator[np.ndarray]:
    for n in range(count):
        yield np.full(3000, n / 3)

@expose
def rounded() -> np.ndarray:
    global runs
    runs += 1
    return np.arange(5000.0) + runs * 1e-6

@expose
def moved() -> dict[str, np.ndarray]:
    global runs
    runs += 1
    return {"values": np.append(np.zeros(4999), runs)}

@expose
def token() -> int:
    global runs
    runs += 1
    return 50_000 + runs
"""

CODE = """
import numpy as np, tools
tools.between((1, 2.5)); tools.between((1, 2.5), {3: "three"}); tools.read("four", scale=2.0)
v = np.linspace(-1, 1, 4000)
change = tools.Change(v, tools.Mode.SET, (0, 3))
tools.steer("go ", [change, tools.Change(v)]); tools.parts(v); tools.many(3000)
tools.reverse(b"bytes" * 900); tools.others()
h = tools.keep(v); a, b = tools.both(h)
tools.total(b, scale=3.0); a[2:5]; h.fetch()
tools.site(3); tools.site("blocks.3.attn.hook_z", {"thinking": False, "scale": 0.5, "name": "x"})
tools.named("abc"); tools.named(h)
list(tools.stream(3)); tools.rounded()
try:
    tools.read("")
except ValueError:
    tools.moved(); tools.token()
    print("all were made")
"""
OVER_MCP: tuple[tuple[str, dict[str, Any]], ...] = (
    ("reverse", {"data": "Ynl0ZXM="}),
    ("between", {"ends": [1, 2.5], "names": {"3": "three"}}),
    ("total", {"values": [1.0, 2.0]}),
)
STEADY = (
    *("between", "between", "read", "steer", "parts", "many", "reverse", "others", "keep"),
    *("both", "total", "handle.fetch", "handle.fetch", "site", "site", "named", "named"),
    *("stream", "rounded"),
)


def recorded(word: str, result: object, function: str = "read", name: str = "tools") -> GateCall:
    return GateCall(
        interface=name,
        caller="agent",
        function=function,
        arguments=json.dumps([[word], {"scale": 2.0}]),
        result=json.dumps({"result": result}),
    )


def test_calls_run_again_through_a_served_library(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(INTERFACE)
    config = SandboxConfig(gpu=None, provider="local", python_packages=["numpy"])
    with ScopedSandbox(config) as scoped:
        library = scoped.serve(str(tmp_path / "tools.py"), name="tools")
        assert isinstance(library, Library)
        with pytest.raises(ConfigError, match="two libraries have this name"):
            rerun_through(library, library)
        through, run = rerun_through(library), Run(tmp_path)

        def rerun(call: GateCall) -> str | None:
            return through(call, run)

        same = {"word": "four", "scores": [8.0002, 0.5], "vector": None}
        assert rerun(recorded("four", same)) is None
        other = rerun(recorded("four", {**same, "scores": [9.0, 0.5]}))
        assert other == "at ['scores'][0]: recorded 9.0, got 8.0"
        text = rerun(recorded("four", {**same, "word": "five"}))
        assert text is not None and "recorded 'five', got 'four'" in text
        fewer = rerun(recorded("four", {**same, "scores": [8.0]}))
        assert fewer is not None and "recorded 1 values, got 2" in fewer
        keys = rerun(recorded("four", {"word": "four"}))
        assert keys is not None and "recorded the keys ['word']" in keys
        failed = rerun(recorded("", same))
        assert failed is not None and "no word" in failed
        absent = rerun(recorded("four", same, name="elsewhere"))
        assert absent is not None and "nothing is served as 'elsewhere'" in absent


async def test_whatever_succeeded_runs_again_from_its_record(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(INTERFACE)
    steps = [
        Step(calls=(Call(tool="python", arguments={"code": CODE}),)),
        *(Step(calls=(Call(tool=tool, arguments=given),)) for tool, given in OVER_MCP),
        Step(text=json.dumps(report())),
    ]
    config = SandboxConfig(gpu=None, provider="local", python_packages=["numpy"])
    async with ScopedSandbox(config) as scoped:
        library: Any = await scoped.aserve(tmp_path / "tools.py", name="tools")
        direct: Any = scoped.present("tools", "mcp")
        async with await acreate_local_session(
            Workspace(libraries=[library]), workspace_dir=tmp_path / "work"
        ) as session:
            agent = run_agent("look", provider=Scripted(steps), session=session, mcp_config=direct)
            events = [event async for event in agent]
        assert isinstance(events[-1], RunFinished) and events[-1].reason == "completed", events
        run = open_run(agent.run_id)
        calls = [GateCall.from_json(line) for line in run.calls()]
        made = [*STEADY, "read", "moved", "token", *(tool for tool, _ in OVER_MCP)]
        assert [call.function for call in calls] == made, events

        def again() -> tuple[list[str | None], Verification]:
            rerun = rerun_through(library)
            return [rerun(call, run) for call in calls], verify(run, rerun=rerun)

        with anyio.fail_after(120):
            found, checked = await anyio.to_thread.run_sync(again)
    names = dict(zip(made, found, strict=True))
    assert names["moved"] is not None and "at ['values'][4999]: " in names["moved"]
    assert names["token"] is not None and names["token"].startswith("recorded ")
    changed = [i for i, words in enumerate(found) if words is not None]
    assert changed == [len(STEADY) + n for n in range(3)], found
    assert [check.problems for check in checked.claims] == [()], str(checked)


FACTS: tuple[tuple[str, str, float | str], ...] = (
    *(("between#1", "[0]", 1.5), ("read#1", "scores[0]", 8.0), ("steer#1", "word", "go set")),
    *(("steer#1", "vector[3999]", 2.0), ("parts#1", "half[0]", -0.5), ("parts#1", "odd[2]", 1.0)),
    *(("many#1", "[8]", 1.0), ("total#1", "", 24000.0), ("stream#1", "[1][0]", 0.333)),
    ("rounded#1", "[10]", 10.0),
)


def report() -> dict[str, Any]:
    """A report that reads tuples, records, arrays, long lists and streams."""
    checks = [
        {"call": call, "path": path, "operator": "==", "value": value}
        for call, path, value in FACTS
    ]
    one = {"text": "They are so.", "kind": "fact", "checks": checks}
    return {"found": True, "answer": {}, "claims": [one]}


TOOLKIT = """
import json
import numpy as np, tools

claims = []
def fact(path, value):
    check = {"call": tools.last_call(), "path": path, "operator": "==", "value": float(value)}
    claims.append({"text": "It is so.", "kind": "fact", "checks": [check], "tried": 9})

ups, downs = (["I like " + t, "See " + t, "All " + t] for t in ("the sea", "a clock"))
found = tools.contrast(ups, downs, 1)
fact("vector[0]", found.vector[0])
change = tools.Steering(layer=1, direction=found.vector, scale=40.0)
moved = tools.next_tokens("hello world", k=1, steering=[change]).top[0].token
at = []
for steering in ([change], []):
    reply = tools.next_tokens("hello world", k=3, among=(moved,), steering=steering)
    at.append(({"call": tools.last_call(), "path": "among[0].score"}, reply.among[0].score))
(own, high), (other, low) = at
held = tools.hold_activations("hello world", 1)
row = np.asarray(held[-1])
fact("[0]", row[0])
probe = tools.train_probe([*ups, *downs, "by the sea", "by a clock"], list("sssccccs"), 1)
fact("accuracy", probe.accuracy)
size = {"operator": ">" if high > low else "<", "value": (high - low) / 2}
effect = {"measure": "difference", "of": own, "control": other, "given": "hello world", **size}
claims.append({"text": "Steering moves it.", "kind": "effect", "checks": [effect], "tried": 9})
print(json.dumps({"found": True, "answer": {}, "claims": claims}))
"""


async def test_verify_live_runs_the_toolkits_own_calls_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = make(tmp_path / "tiny", "llama")
    packages = ["torch", "transformers", "peft", "nnsight", "scikit-learn"]
    config = SandboxConfig(
        gpu=None, provider="local", python_packages=packages, models=[ModelConfig(name=str(tiny))]
    )
    steps = [
        Step(calls=(Call(tool="python", arguments={"code": TOOLKIT, "wait": 240}, save="report"),)),
        Step(text="{report.text}"),
    ]
    async with ScopedSandbox(config) as scoped:
        library: Any = await scoped.aserve(interfaces.whitebox, name="tools")
        async with await acreate_local_session(
            Workspace(libraries=[library]), workspace_dir=tmp_path / "work"
        ) as session:
            agent = run_agent("look", provider=Scripted(steps), session=session)
            events = [event async for event in agent]
    made = [call.function for call in open_run(agent.run_id).typed_calls()]
    assert {"contrast", "hold_activations", "train_probe", "handle.fetch"} <= {*made}, events
    again = ["verify", agent.run_id, "--live", str(interfaces.whitebox), "--name", "tools"]
    around = ["--model", str(tiny), "--provider", "local"]
    around += [word for package in packages for word in ("--package", package)]

    def code() -> int:
        return main([*again, *around])

    with anyio.fail_after(200):
        assert await anyio.to_thread.run_sync(code) == 0, capsys.readouterr()
    assert "the report stands" in capsys.readouterr().out
