"""Model repositories that contain code, or names that lead to other files."""

import json
import os
import pickle
import subprocess
from pathlib import Path

import pytest

from seer.environment import ExecutionMode, ModelConfig, Sandbox, SandboxConfig
from seer.errors import ModelError, StartError
from tests.support.hub import LoopbackHub

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

NAME = "acme/quiet-otter"


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of this test's own, and no settings of the user's."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


class _Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[object, tuple[list[str]]]:
        return subprocess.call, (["sh", "-c", self._command],)


CODE = """
import os
try:
    open(MARKER, "w").close()
except OSError as error:
    print("no marker:", error)
print("ran as", os.getuid(), "in", os.getcwd())
from transformers import PretrainedConfig
class EvilConfig(PretrainedConfig):
    model_type = "evil"
"""

LOAD = """
import os, pickle
import torch
from transformers import AutoConfig
folder = os.environ["MODEL_PATH"]
try:
    torch.load(f"{folder}/pytorch_model.bin")
except Exception as error:
    print("torch refuses:", type(error).__name__)
with open(f"{folder}/pytorch_model.bin", "rb") as file:
    pickle.load(file)
try:
    AutoConfig.from_pretrained(folder, trust_remote_code=False)
except ValueError as error:
    print("transformers refuses")
AutoConfig.from_pretrained(folder, trust_remote_code=True)
"""


def test_a_model_runs_its_code_on_the_host(tmp_path: Path) -> None:
    """Preparing runs no code; code that a user allows a model to run runs in the machine."""
    marker = tmp_path / "code-ran"
    tmp_path.chmod(0o777)
    folder = tmp_path / "evil"
    folder.mkdir()
    auto_map = {"AutoConfig": "configuration_evil.EvilConfig"}
    config = {"model_type": "evil", "auto_map": auto_map, "architectures": ["EvilModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_evil.py").write_text(CODE.replace("MARKER", repr(str(marker))))
    command = f"touch {marker}; echo unpickled as $(id -u)"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Payload(command)))
    settings = SandboxConfig(
        gpu=None,
        provider="local",
        execution_mode=ExecutionMode.CLI,
        models=[ModelConfig(str(folder))],
        python_packages=["torch", "transformers"],
    )
    with Sandbox(settings) as sandbox:
        path = sandbox.model_handles[0].path
        said = sandbox.exec_python(f"import os; os.environ['MODEL_PATH'] = {path!r}\n" + LOAD)
    assert "torch refuses: UnpicklingError" in said
    assert "transformers refuses" in said
    assert "unpickled as" in said
    assert "ran as" in said
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../../../../climbed.json", "/ROOT/absolute.json", "a/../../b"])
def test_a_model_of_the_hub_has_names_that_climb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    published = tmp_path / "published"
    published.mkdir()
    (published / "config.json").write_text("{}")
    root = tmp_path / "root"
    root.mkdir()
    with LoopbackHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.add_model(NAME, published)
        found = hub.find(NAME)
        assert found is not None
        found.files[name.replace("/ROOT", str(root))] = published / "config.json"
        settings = SandboxConfig(gpu=None, provider="local", models=[ModelConfig(NAME)])
        with pytest.raises(StartError) as refused:
            Sandbox(settings).start()
        assert isinstance(refused.value.__cause__, ModelError)
    snapshots = tmp_path / "hf/hub/models--acme--quiet-otter/snapshots"
    strays = [
        path
        for path in tmp_path.rglob("*")
        if path.name in ("climbed.json", "absolute.json", "b") and snapshots not in path.parents
    ]
    assert not strays
