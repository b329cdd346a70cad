"""Cited calls run again through a live gate, and a changed answer is noticed."""

import json
from pathlib import Path

import pytest

from seer.environment import SandboxConfig, ScopedSandbox
from seer.runs import GateCall
from seer.scoring import rerun_through
from seer.workspace import Library

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]

INTERFACE = """
from dataclasses import dataclass

@dataclass
class Reading:
    word: str
    scores: list[float]

@expose
def read(word: str, *, scale: float = 1.0) -> Reading:
    if not word:
        raise ValueError("no word")
    return Reading(word, [len(word) * scale, 0.5])
"""


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
    with ScopedSandbox(SandboxConfig(gpu=None, provider="local")) as scoped:
        library = scoped.serve(str(tmp_path / "tools.py"), name="tools")
        assert isinstance(library, Library)
        rerun = rerun_through(library)
        same = {"word": "four", "scores": [8.0002, 0.5]}
        assert rerun(recorded("four", same)) is None
        other = rerun(recorded("four", {"word": "four", "scores": [9.0, 0.5]}))
        assert other is not None and "9.0 was recorded, 8.0 came" in other
        text = rerun(recorded("four", {"word": "five", "scores": [8.0, 0.5]}))
        assert text is not None and "'five' was recorded, 'four' came" in text
        fewer = rerun(recorded("four", {"word": "four", "scores": [8.0]}))
        assert fewer is not None and "2 values were recorded, 3 came" in fewer
        failed = rerun(recorded("", same))
        assert failed is not None and "no word" in failed
        absent = rerun(recorded("four", same, name="elsewhere"))
        assert absent is not None and "nothing is served as 'elsewhere'" in absent
