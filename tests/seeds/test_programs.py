"""The programs that specify the product run word for word.

The named model and agent stand in for what a fresh machine lacks, through the two public settings
that exist for it. Programs that await at top level, as in a notebook, are run that way.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from seer.events import Event, event_from_json
from seer.harness import RunFinished, ToolResult
from seer.runs import GateCall, Run, RunIndex, compare_runs, open_run, replay_environment
from seer.testing import make_tiny_model

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

HERE = Path(__file__).parent / "programs"
INTRO = HERE.parents[2] / "experiments" / "scoped-sandbox-intro"

# As `python -m asyncio` would run it, with the one name that its document presupposes.
NOTEBOOK = """
import ast, asyncio, inspect, pathlib, sys
code = compile(pathlib.Path("main.py").read_text(), "main.py", "exec",
               flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
names = {"__name__": "__main__", "__file__": "main.py", "Path": pathlib.Path}
result = eval(code, names)
if inspect.iscoroutine(result):
    asyncio.run(result)
names["scoped"].terminate() if "scoped" in names else None
"""

PYTHON_STEPS = """
[[steps]]
[[steps.calls]]
tool = "python"
expect = { contains = ["num_layers", "vector of 32"] }
[steps.calls.arguments]
code = '''
import model_tools
print(model_tools.get_model_info())
print("vector of", len(model_tools.get_embedding("hello world")["embedding"]))
'''
"""

GUIDE_STEPS = """
[[steps]]
[[steps.calls]]
tool = "python"
expect = { contains = ["num_layers", "similarity", "1.0"] }
[steps.calls.arguments]
code = '''
import model_tools
print(model_tools.get_model_info())
print(model_tools.compare_texts("hello", "hello"))
'''
"""

USAGE_STEPS = """
[[steps]]
[[steps.calls]]
tool = "get_activations"
expect = { contains = ["activations", "shape"] }
[steps.calls.arguments]
prompt = "hello"
layer = 1
[[steps.calls]]
tool = "list_cache"
expect = { contains = "cache" }
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def run_program(
    source: Path, folder: Path, *, steps: str, model: Path, notebook: bool = False
) -> list[ToolResult]:
    """Run a copy of a program as a user would; what its agent's tools answered."""
    work = folder / "experiment"
    shutil.copytree(source, work, ignore=shutil.ignore_patterns("workspace", "steps.toml"))
    (work / "steps.toml").write_text(steps)
    settings = {
        "SEER_PROVIDER": "local",
        "SEER_AGENT": "scripted:steps.toml",
        "SEER_MODEL_ALIASES": f"google/gemma-2-9b={model}",
        "HF_TOKEN": "hf_planted_for_the_test",
    }
    recorded = run_copy(work, folder / "runs", settings, notebook=notebook)
    events = [event_from_json(event) for event in recorded.events()]
    assert "hf_planted_for_the_test" not in json.dumps([*map(Event.to_json, events)])
    return [event for event in events if isinstance(event, ToolResult)]


def run_copy(work: Path, runs: Path, settings: Mapping[str, str], *, notebook: bool = False) -> Run:
    """Run a program that is there already; its record."""
    env = {**os.environ, **settings, "SEER_RUNS": str(runs)}
    argv = [sys.executable, "-c", NOTEBOOK] if notebook else [sys.executable, "main.py"]
    ended = subprocess.run(argv, cwd=work, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    (summary,) = RunIndex(runs).list()
    recorded = open_run(summary.run_id, runs)
    (*_, last) = (event_from_json(event) for event in recorded.events())
    assert isinstance(last, RunFinished) and last.reason == "completed", last
    return recorded


@pytest.mark.parametrize("source", [INTRO, HERE / "tutorial"], ids=["000", "001"])
def test_scoped_sandbox_programs_run_unchanged(source: Path, tmp_path: Path, tiny: Path) -> None:
    results = run_program(source, tmp_path, steps=PYTHON_STEPS, model=tiny)
    assert len(results) == 1 and not results[0].is_error


def test_interface_guide_runs_unchanged(tmp_path: Path, tiny: Path) -> None:
    results = run_program(HERE / "guide", tmp_path, steps=GUIDE_STEPS, model=tiny, notebook=True)
    assert len(results) == 1 and not results[0].is_error


def test_usage_guide_runs_unchanged_with_mcp_tools(tmp_path: Path, tiny: Path) -> None:
    results = run_program(HERE / "usage", tmp_path, steps=USAGE_STEPS, model=tiny, notebook=True)
    assert len(results) == 2 and not any(result.is_error for result in results)


def timeless(value: Any) -> Any:
    """Without what a clock measured."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: timeless(item) for key, item in items if key != "seconds"}
    return (
        [timeless(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value
    )


def substance(run: Run) -> bytes:
    """All texts, calls and answers of a run, without the ids of this run."""
    kept: list[object] = []
    for event in run.events():
        for name in ("time", "run_id", "session", "provider", "model"):
            event.pop(name, None)
        kept.append(timeless(event))
    for line in run.calls():
        call = GateCall.from_json(line)
        kept.append((call.caller, call.key, call.outcome, call.result, call.result_buffers))
    return json.dumps(kept, sort_keys=True).encode()


def test_a_recorded_program_runs_again_byte_for_byte_without_model_or_interface(
    tmp_path: Path, tiny: Path
) -> None:
    work = tmp_path / "experiment"
    shutil.copytree(INTRO, work, ignore=shutil.ignore_patterns("workspace"))
    settings = {"SEER_AGENT": "scripted:steps.toml", "SEER_PROVIDER": "local"}
    aliases = {"SEER_MODEL_ALIASES": f"google/gemma-2-9b={tiny}"}
    first = run_copy(work, tmp_path / "first", settings | aliases)
    about = first.meta["interfaces"]["model_tools"]
    assert about["source"] == hashlib.sha256((work / "interface.py").read_bytes()).hexdigest()
    [origin] = about["models"]
    assert (origin["name"], origin["source"]) == ("google/gemma-2-9b", str(tiny))
    weights = about["weights"]["google/gemma-2-9b"]["files"]
    data = (tiny / "model.safetensors").read_bytes()
    assert weights["model.safetensors"] == hashlib.sha256(data).hexdigest()
    assert {"torch", "transformers"} <= set(about["packages"])
    calls = [line["function"] for line in first.calls()]
    assert calls == ["get_model_info", *["get_embedding"] * 3]

    # No model is available any more, and importing the interface would fail.
    (work / "interface.py").write_text("raise SystemExit('the interface was imported')")
    again = run_copy(work, tmp_path / "again", replay_environment(first))
    assert substance(again) == substance(first)
    assert again.meta["replay_of"] == str(first.folder)
    assert compare_runs(first, again).equal
