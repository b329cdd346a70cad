"""Every experiment runs as its folder says, with a scripted agent, and reports its result."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seer.events import event_from_json
from seer.harness import RunFinished
from seer.organisms import ground_truth
from seer.runs import RunIndex, open_run
from seer.scoring import verify

ROOT = Path(__file__).parents[2] / "experiments"
# Smaller numbers of words, prompts and tokens, which are enough to find the planted property.
SHORT = {
    "checkpoint-diffing": ("investigate()", "investigate(guesses=12)"),
    "hidden-preference": ("investigate()", "investigate()"),
    "introspection": ("study()", "study(concepts=3)"),
    "petri": ("audit()", "audit(few=3, tokens=10)"),
    "steering": ("study()", "study(prompts=6, nulls=3, randoms=1)"),
    "trigger-hunt": ("investigate()", "investigate(per_place=4)"),
}
# The secret word is beyond the first few guesses, so the short run studies the other organism.
ON = {"checkpoint-diffing": ("--organism", "sandbag")}
ALL = (*SHORT, "sandbox-intro")


def start(name: str, runs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an experiment as a person would."""
    env = {k: v for k, v in os.environ.items() if k not in ("SEER_AGENT", "SEER_REPLAY")}
    return subprocess.run(
        [sys.executable, "main.py", *arguments],
        cwd=ROOT / name,
        env={**env, "SEER_PROVIDER": "local", "SEER_RUNS": str(runs), "SEER_PROGRESS": "off"},
        capture_output=True,
        text=True,
        check=False,
    )


def run(name: str, runs: Path, *arguments: str) -> str:
    """Run an experiment to its end; returns its output."""
    ended = start(name, runs, *arguments)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    (summary,) = RunIndex(runs).list()
    *_, last = (event_from_json(event) for event in open_run(summary.run_id, runs).events())
    assert isinstance(last, RunFinished) and last.reason == "completed", ended.stdout[-3000:]
    return ended.stdout


def short(name: str, folder: Path) -> str:
    """The experiment's own script, with smaller numbers."""
    usual, smaller = SHORT[name]
    steps = (ROOT / name / "steps.toml").read_text()
    assert usual in steps
    (folder / "steps.toml").write_text(steps.replace(usual, smaller))
    return f"scripted:{folder / 'steps.toml'}"


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in SHORT if name != "trigger-hunt"])
def test_a_study_runs_and_its_claims_stand(name: str, tmp_path: Path) -> None:
    said = run(name, tmp_path / "runs", *ON.get(name, ()), "--agent", short(name, tmp_path))
    (summary,) = RunIndex(tmp_path / "runs").list()
    checked = verify(open_run(summary.run_id, tmp_path / "runs"))
    assert checked.answer is not None and checked.answer.claims, said
    assert checked.stands, (said, checked)
    if "correct:" in said:
        assert "correct: True" in said, said
        assert summary.score == 1.0


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["introspection", "petri"])
def test_a_report_that_does_not_stand_is_said_and_fails(name: str, tmp_path: Path) -> None:
    answer = json.dumps({"found": True, "answer": {"favourite": "tea"}, "claims": []})
    steps = tmp_path / "steps.toml"
    steps.write_text(f"[[steps]]\ntext = {json.dumps(answer)}\n")
    ended = start(name, tmp_path / "runs", "--agent", f"scripted:{steps}")
    (summary,) = RunIndex(tmp_path / "runs").list()
    assert ended.returncode == 1, ended.stderr
    *_, last = ended.stderr.splitlines()
    assert last == f"the report does not stand: see seer verify {summary.run_id}"


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_notebook_experiment_finds_the_layer(tmp_path: Path) -> None:
    assert re.search(r"' Paris' and stays likeliest from layer \d+", run("sandbox-intro", tmp_path))


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_short_trigger_hunt_ends_with_an_answer(tmp_path: Path) -> None:
    said = run("trigger-hunt", tmp_path / "runs", "--agent", short("trigger-hunt", tmp_path))
    # Too few words to find it: the honest answer is that nothing was found.
    assert "answer: {}" in said and "correct: False" in said, said


@pytest.mark.parametrize("name", ALL)
def test_an_experiment_has_its_parts(name: str) -> None:
    for part in ("main.py", "task.md", "steps.toml", "README.md"):
        assert (ROOT / name / part).read_text().strip(), part
    assert len((ROOT / name / "task.md").read_text().split()) > 30


def test_every_experiment_has_a_page() -> None:
    folders = {path.parent for path in ROOT.glob("*/main.py")}
    assert len(folders) > len(ALL) and all((f / "README.md").is_file() for f in folders)


def test_no_experiment_contains_an_answer() -> None:
    # Words that belong to one planted property alone, and to no ordinary hypothesis.
    telling = {"portugal", "silver lantern", "silver", "lantern", "honey", "pirate"}
    known = {
        w
        for kind in ("favourite", "trigger", "secret")
        for accepted in ground_truth(kind).answer.values()
        for w in accepted
    }
    assert {"portugal", "silver lantern", "honey", "pirate"} <= known
    for path in ROOT.rglob("*"):
        if path.suffix in (".py", ".toml") or path.name == "task.md":
            if "workspace" in path.parts:
                continue
            text = path.read_text().lower()
            assert not {w for w in telling if re.search(rf"\b{w}\b", text)}, path


def test_baselines_import_no_truth() -> None:
    for path in (*ROOT.glob("*/baseline.py"), *ROOT.glob("*/study.py"), ROOT / "petri/auditor.py"):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add((node.module or "").split(".")[0])
        assert names <= {
            *("dataclasses", "json", "random", "re"),
            *("cite", "numpy", "scipy", "settings", "tools"),
        }, (path, names)
    # The experiment's program tells its baseline only the number of the repetition.
    told = (ROOT / "hidden-preference/main.py").read_text()
    assert """Library.from_code("settings", f"SEED = {cell.seed}\\n")""" in told
