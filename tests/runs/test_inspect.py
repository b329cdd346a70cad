"""A run exported as a log of Inspect, read back with the `inspect_ai` package.

That package needs versions of shared libraries that Seer's own environment does not have, so it
lives in an environment of its own, made once and kept in the user's cache.
"""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Image

from seer.harness import Call, Expect, Limits, Scripted, Step, run_agent
from seer.runs import export_inspect, open_run

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

INSPECT = "inspect-ai==0.3.285"
LONGEST = 240


@pytest.fixture(scope="module")
def inspect_python() -> Path:
    """The interpreter of an environment that has `inspect_ai`."""
    given = os.environ.get("SEER_TEST_INSPECT_PYTHON")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "seer-tests" / INSPECT.replace("==", "-")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        # Two workers of one test run must not build it at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            build(folder)
    return folder / "bin" / "python"


def build(folder: Path) -> None:
    """Make the environment; without a package index, or with a slow one, the tests are skipped."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", INSPECT]
    try:
        done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{INSPECT} was not installed within {LONGEST} s")
    if done.returncode != 0:
        pytest.skip(f"{INSPECT} cannot be installed here: {done.stderr.strip()[-300:]}")
    (folder / "complete").touch()


def tools() -> MCPServer:
    server: MCPServer = MCPServer("lab")

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def picture() -> Image:
        """A picture."""
        return Image(data=b"\x89PNG", format="png")

    def broken() -> str:
        """Fails."""
        raise ValueError("no")

    for function in (add, picture, broken):
        server.tool()(function)
    return server


async def record(root: Path, steps: list[Step], **arguments: Any) -> str:
    run = run_agent(
        "you are careful",
        {"lab": tools()},
        task="look at it",
        provider=Scripted(steps),
        record=root,
        name="inspection",
        **arguments,
    )
    with anyio.fail_after(60):
        async for _ in run:
            continue
    return run.run_id


def read(python: Path, root: Path, run_id: str) -> dict[str, Any]:
    folder = root / "logs"
    path = export_inspect(open_run(run_id, root), folder)
    reader = Path(__file__).with_name("inspect_reader.py")
    done = subprocess.run(
        [str(python), str(reader), str(path), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_inspect_reads_what_happened(tmp_path: Path, inspect_python: Path) -> None:
    steps = [
        Step(
            thinking="hm",
            text="let me see",
            usage={"input_tokens": 10, "output_tokens": 5},
            calls=(
                Call(tool="add", arguments={"a": 1, "b": 2}),
                Call(tool="picture"),
                Call(tool="broken", expect=Expect(error=True)),
            ),
        ),
        Step(text="it is 3", usage={"input_tokens": 20, "output_tokens": 5}),
    ]
    seen = read(inspect_python, tmp_path, await record(tmp_path, steps))
    assert (seen["status"], seen["task"], seen["output"]) == ("success", "inspection", "it is 3")
    assert [role for role, _ in seen["messages"]] == [
        *("system", "user", "assistant", "tool", "tool", "tool", "assistant"),
    ]
    assert seen["messages"][3] == ["tool", "3"]
    assert seen["tool_calls"] == [["add", {"a": 1, "b": 2}], ["picture", {}], ["broken", {}]]
    assert seen["parts"].count("image") == 1
    assert seen["parts"].count("reasoning") == 1
    assert seen["events"] == ["model", "tool", "tool", "tool", "model"]
    assert seen["tokens"] == 40
    assert seen["listed"] == 2
    assert seen["same"]


async def test_inspect_sees_limits_and_errors(tmp_path: Path, inspect_python: Path) -> None:
    call = Call(tool="add", arguments={"a": 1, "b": 2})
    steps = [Step(text="again", calls=(call,), usage={"input_tokens": 1}) for _ in range(5)]
    seen = read(inspect_python, tmp_path, await record(tmp_path, steps, limits=Limits(turns=2)))
    assert (seen["status"], seen["limit"]) == ("success", "turn")
    run_id = "20260101-000000-00000000"
    (tmp_path / run_id).mkdir()
    meta = {"format": 1, "created": 1.0, "model": "m"}
    meta |= {"status": "error", "message": "it broke"}
    (tmp_path / run_id / "run.json").write_text(json.dumps(meta))
    path = export_inspect(open_run(run_id, tmp_path), tmp_path / "broken.json")
    log = json.loads(path.read_text())
    assert (log["status"], log["samples"][0]["error"]["message"]) == ("error", "it broke")
