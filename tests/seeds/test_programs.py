"""The programs that specify the product run word for word.

The named model and agent stand in for what a fresh machine lacks, through the two public settings
that exist for it. Programs that await at top level, as in a notebook, are run that way.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seer.harness import RunFinished, ToolResult, event_from_json
from seer.runs import RunIndex, open_run
from seer.testing import make_tiny_model

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

HERE = Path(__file__).parent / "programs"
INTRO = HERE.parents[2] / "experiments" / "scoped-sandbox-intro"

# As `python -m asyncio` would run it, with the one name that its document takes for granted.
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
    env = {
        **os.environ,
        "SEER_PROVIDER": "local",
        "SEER_AGENT": "scripted:steps.toml",
        "SEER_MODEL_ALIASES": f"google/gemma-2-9b={model}",
        "SEER_RUNS": str(folder / "runs"),
        "HF_TOKEN": "hf_planted_for_the_test",
    }
    argv = [sys.executable, "-c", NOTEBOOK] if notebook else [sys.executable, "main.py"]
    ended = subprocess.run(argv, cwd=work, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    (summary,) = RunIndex(folder / "runs").list()
    recorded = list(open_run(summary.run_id, folder / "runs").events())
    assert "hf_planted_for_the_test" not in json.dumps(recorded)
    events = [event_from_json(event) for event in recorded]
    assert isinstance(events[-1], RunFinished) and events[-1].reason == "completed", events[-1]
    return [event for event in events if isinstance(event, ToolResult)]


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
