"""One experiment file gives the same result on this host and on an SSH host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sshd import SshServer

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("ssh-remote"),
]

_INTERFACE = '''
import numpy as np

WEIGHTS = np.random.default_rng(7).standard_normal((64, 64))


@expose
def project(values: list[float]) -> list[float]:
    """Project a vector."""
    return [round(float(x), 9) for x in WEIGHTS @ np.asarray(values)]


@expose
def weights() -> np.ndarray:
    """The weights."""
    return WEIGHTS
'''
_MAIN = '''
import asyncio

from seer.environment import ExecutionMode, Sandbox, SandboxConfig, ScopedSandbox
from seer.execution import create_local_session
from seer.harness import Call, Scripted, Step, run_agent
from seer.runs import open_run
from seer.workspace import Workspace

AGENT = """
for n in range(40):
    tools.project([float(n)] * 64)
for _ in range(3):
    tools.weights()
"""


async def record(session):
    steps = [Step(calls=(Call(tool="python", arguments={"code": AGENT}),))]
    run = run_agent("look", provider=Scripted(steps), session=session)
    end = [event async for event in run][-1]
    made = open_run(run.run_id)
    calls = list(made.calls())
    arrays = [call["result_buffers"] for call in calls if call["function"] == "weights"]
    digests = {digest for found in arrays for digest in found}
    print(end.reason, [call["function"] for call in calls], digests)
    assert all(len(made.blob(digest)) == 64 * 64 * 8 for digest in digests)


config = SandboxConfig(gpu=None, python_packages=["numpy"], execution_mode=ExecutionMode.CLI)
with ScopedSandbox(config) as scoped:
    tools = scoped.serve("interface.py", name="tools")
    session = create_local_session(Workspace(libraries=[tools]))
    code = """
import numpy as np
import tools
values = np.linspace(0, 1, 64).tolist()
print(tools.project(values)[:3], tools.weights().sum().round(6))
"""
    print(session.exec(code).text)
    asyncio.run(record(session))
    session.close()
with Sandbox(config) as sandbox:
    sandbox.write_file("data.txt", "one two three")
    print(sandbox.exec("wc -w < data.txt; pwd; whoami"))
    print(sandbox.exec_python("import sys; print(sys.version_info[:2])"))
'''


def _run(folder: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_file_gives_the_same_result_here_and_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "interface.py").write_text(_INTERFACE)
    (tmp_path / "main.py").write_text(_MAIN)
    state = str(tmp_path / "state")
    monkeypatch.setenv("SEER_RUNS", str(tmp_path / "runs"))
    here = _run(tmp_path, SEER_PROVIDER="local")
    with SshServer() as server:
        environment = {**server.environment(), "XDG_STATE_HOME": state}
        there = _run(tmp_path, SEER_PROVIDER="ssh", **environment)
    assert there == here
    assert "/workspace" in here
    # A run has the calls of its session on either host, including the two before the run.
    assert f"completed {[*['project', 'weights'], *['project'] * 40, *['weights'] * 3]}" in here
