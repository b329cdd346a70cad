"""One experiment, changed only by `SEER_PROVIDER`, gives the same result everywhere."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.containers import supported
from tests.support.modal_cloud import ModalCloud
from tests.support.runpod_cloud import RunPodCloud

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("rented"),
    pytest.mark.skipif(supported() is not None, reason=str(supported())),
]

_INTERFACE = '''
import hashlib

counts = {}


@expose
def embed(text: str) -> list[float]:
    """A number for each letter, always the same."""
    digest = hashlib.sha256(text.encode()).digest()
    counts[text] = counts.get(text, 0) + 1
    return [byte / 255 for byte in digest[:8]]


@expose
def asked() -> dict[str, int]:
    """How often each text was asked for."""
    return counts
'''

_EXPERIMENT = """
import json, sys
from pathlib import Path
from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import create_local_session
from seer.workspace import Workspace

scoped = ScopedSandbox(SandboxConfig(gpu=None, lease=30.0))
scoped.start()
model_tools = scoped.serve("interface.py", expose_as="library", name="model_tools")
session = create_local_session(Workspace(libraries=[model_tools]), workspace_dir="./workspace")
said = session.exec('''
from model_tools import asked, embed
rows = [embed(word) for word in ("alpha", "beta", "alpha")]
print(rows[0] == rows[2], [round(value, 6) for value in rows[1]], asked())
''')
session.close()
scoped.terminate()
print(json.dumps([said.status, said.text]))
"""


@pytest.fixture(scope="module")
def clouds() -> Generator[dict[str, dict[str, str]]]:
    with ModalCloud() as modal, RunPodCloud() as runpod:
        yield {"modal": modal.environment, "runpod": runpod.environment}
        assert (modal.running, runpod.running) == ([], [])


def _run(folder: Path, provider: str, environment: dict[str, str]) -> list[str]:
    folder.mkdir()
    (folder / "interface.py").write_text(_INTERFACE)
    (folder / "main.py").write_text(_EXPERIMENT)
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=folder,
        env={**os.environ, **environment, "SEER_PROVIDER": provider},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return _run(tmp_path_factory.mktemp("experiment") / "here", "local", {})


@pytest.mark.parametrize("provider", ["modal", "runpod"])
def test_an_experiment_gives_the_same_result_elsewhere(
    clouds: dict[str, dict[str, str]], tmp_path: Path, provider: str, here: list[str]
) -> None:
    there = _run(tmp_path / "there", provider, clouds[provider])
    assert here == there
    assert here[0] == "ok" and here[1].startswith("True [")
