"""No agent can read the truth, neither from its session nor from the model's machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seer.environment import ModelConfig, Sandbox, SandboxConfig
from seer.execution import create_local_session
from seer.organisms import ground_truth, instances, organism
from seer.testing import make_tiny_model

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SEARCH = """
import os
seen = []
for folder, folders, files in os.walk(ROOT):
    folders[:] = [f for f in folders if os.path.join(folder, f) not in ("/proc", "/sys", "/dev")]
    found = {"truth.json", "labelled.json"}.intersection(files) | set(NAMES).intersection(folders)
    seen += [os.path.join(folder, name) for name in found]
try:
    import seer.organisms
    seen.append("seer.organisms")
except ImportError:
    pass
print("seen:", seen)
"""


def search(root: str = "/") -> str:
    """A program that looks for files with the truth, and for folders named like an instance."""
    return f"ROOT, NAMES = {root!r}, {sorted(instances())!r}\n{SEARCH}"


def test_the_search_finds_the_truth_where_it_is() -> None:
    folder = instances()["secret-2"].folder.parent
    command = [sys.executable, "-c", search(str(folder))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for found in ("secret-2/truth.json'", "secret-2'", "'seer.organisms'"):
        assert found in done.stdout


def test_a_session_sees_neither_the_truth_nor_the_package(tmp_path: Path) -> None:
    assert ground_truth("secret").property  # there, for a grader
    session = create_local_session(workspace_dir=tmp_path / "workspace")
    try:
        assert "seen: []" in session.exec(search()).text
    finally:
        session.close()


@pytest.mark.parametrize("hidden", [False, True])
def test_a_machine_with_an_organism_on_it_sees_its_weights_alone(
    tmp_path: Path, *, hidden: bool
) -> None:
    model = ModelConfig(
        name=str(organism("secret").path),
        is_peft=True,
        base_model=str(make_tiny_model(tmp_path / "base")),
        hidden=hidden,
    )
    config = SandboxConfig(
        gpu=None, provider="local", network="none", models=[model], python_packages=["idna"]
    )
    with Sandbox(config) as sandbox:
        (handle,) = sandbox.model_handles
        there = sandbox.exec(f"ls {handle.path}").split()
        assert sorted(there) == ["adapter_config.json", "adapter_model.safetensors"]
        assert "seen: []" in sandbox.exec_python(search())
        # Nothing that the agent is shown of the model names the organism.
        shown = f"{handle} {sandbox.exec('env; cat /proc/self/mountinfo; ls -R ' + handle.path)}"
        own = (*instances(), *ground_truth("secret").planted.values(), "control")
        assert not [word for word in own if word in shown.replace(os.fspath(tmp_path), "")]
