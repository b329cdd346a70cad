"""A configuration that cannot work is refused before anything is built, downloaded or rented."""

import json
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seer.environment import ModelConfig, Sandbox, SandboxConfig
from seer.environment.prepare._preparer import LocalPreparer
from seer.errors import ModelError, ProviderError, StartError
from seer.providers import Host, MachineSpec
from seer.providers.modal._provider import ModalProvider
from seer.testing import make_tiny_model
from tests.support.hub import LoopbackHub

pytestmark = pytest.mark.full

NAME = "acme/falcon"
INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of this test's own, and no settings of the user's."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "SEER_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def nothing_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing anything fails the test."""

    async def prepare(*_: object, **__: object) -> Any:
        pytest.fail("something was prepared")

    monkeypatch.setattr(LocalPreparer, "packages", prepare)
    monkeypatch.setattr(LocalPreparer, "models", prepare)


def refused(config: SandboxConfig) -> str:
    """Why a sandbox does not start; the reason is one line."""
    with pytest.raises(StartError) as caught:
        Sandbox(config).start()
    words = str(caught.value)
    assert "\n" not in words
    return words


def shards(folder: Path, *missing: str) -> Path:
    """A model whose index names two files, without those that are missing."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    files = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"]
    (folder / INDEX).write_text(json.dumps({"weight_map": dict(zip("ab", files, strict=True))}))
    for file in files:
        if file not in missing:
            (folder / file).write_bytes(bytes(64))
    return folder


# --- this host ------------------------------------------------------------------------------------


def gpus(folder: Path, monkeypatch: pytest.MonkeyPatch, *, free: int | None) -> None:
    """Let `nvidia-smi` report one GPU with this much free memory in MiB, or no GPU for None."""
    lines = (
        "" if free is None else f"  *memory.free*) echo {free};;\n  *name*) echo 0, U, Tesla T4;;"
    )
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f'#!/bin/sh\ncase "$*" in\n{lines}\n  *) ;;\nesac\n')
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.usefixtures("nothing_prepared")
def test_a_gpu_that_is_not_here_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(tmp_path / "bin", monkeypatch, free=None)
    config = SandboxConfig(gpu="A100", provider="local", python_packages=["numpy"])
    said = refused(config)
    assert "gpu='A100' (gpu_count=1) was requested; this host has: no NVIDIA GPU" in said
    assert "gpu=None (the CPU), or another provider" in said


def test_weights_that_the_gpu_has_no_room_for_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpus(tmp_path / "bin", monkeypatch, free=0)
    model = str(make_tiny_model(tmp_path / "tiny"))
    models = [ModelConfig(model)]
    config = SandboxConfig(gpu="T4", provider="local", models=models, network="none")

    async def environment(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(LocalPreparer, "packages", environment)
    with caplog.at_level(logging.WARNING), Sandbox(config):
        pass
    assert "GB free; load them in fewer bits, or free memory" in caplog.text


@pytest.mark.usefixtures("nothing_prepared")
def test_a_model_without_some_of_its_files_is_an_error_at_once(tmp_path: Path) -> None:
    folder = shards(tmp_path / "half", "model-2-of-2.safetensors")
    config = SandboxConfig(gpu=None, provider="local", models=[ModelConfig(str(folder))])
    said = refused(config)
    assert "1 of its files are not in" in said and "(model-2-of-2.safetensors)" in said
    assert "download the model again" in said


@pytest.mark.usefixtures("nothing_prepared")
def test_weights_that_git_did_not_fetch_are_an_error_at_once(tmp_path: Path) -> None:
    folder = shards(tmp_path / "cloned")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (folder / "model-1-of-2.safetensors").write_text(pointer)
    config = SandboxConfig(gpu=None, provider="local", models=[ModelConfig(str(folder))])
    assert f"run: git -C {folder} lfs pull" in refused(config)


async def test_weights_in_another_format_than_the_index_names_will_do(tmp_path: Path) -> None:
    folder = shards(tmp_path / "both", "model-1-of-2.safetensors", "model-2-of-2.safetensors")
    (folder / "pytorch_model.bin").write_bytes(bytes(64))
    (model,) = await LocalPreparer().models([ModelConfig(str(folder))])
    assert model.host_path == folder


# --- the hub --------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with LoopbackHub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own, of five megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a filesystem takes root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_model_that_the_disk_has_no_room_for_is_not_begun(
    hub: LoopbackHub, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "published"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(os.urandom(8_000_000))
    (source / "tf_model.h5").write_bytes(os.urandom(50_000_000))
    hub.add_model(NAME, source)
    monkeypatch.setenv("HF_HOME", str(small_disk))
    with pytest.raises(ModelError) as caught:
        await LocalPreparer().models([ModelConfig(NAME)])
    said = str(caught.value)
    assert "0.008 GB must be downloaded, but only 0.00" in said
    assert said.endswith("make room, or set HF_HOME to a larger disk") and "\n" not in said
    assert not hub.downloads


class Rented(ModalProvider):
    """Modal, which says whether a machine would have been rented."""

    asked = False

    def unavailable(self) -> str | None:
        return None

    async def kept_secrets(self, names: object, options: object) -> tuple[str, ...]:
        return ()

    async def host(self, spec: MachineSpec) -> Host | None:
        self.asked = True
        raise ProviderError("rented")


@pytest.fixture
def rented(monkeypatch: pytest.MonkeyPatch) -> Rented:
    provider = Rented()

    def it(name: str) -> Rented:
        return provider

    for name in ("get_provider", "resolve_provider"):
        monkeypatch.setattr(f"seer.environment._start.{name}", it)
    return provider


def test_a_model_that_the_hub_does_not_have_rents_nothing(hub: LoopbackHub, rented: Rented) -> None:
    config = SandboxConfig(gpu="A100", provider="modal", models=[ModelConfig(NAME)])
    with pytest.raises(
        StartError, match="phase 'models'.*no such model on the hub; check the name"
    ):
        Sandbox(config).start()
    assert not rented.asked


def test_a_model_on_the_hub_is_no_reason_to_wait(
    hub: LoopbackHub, rented: Rented, tmp_path: Path
) -> None:
    hub.add_model(NAME, shards(tmp_path / "published"))
    config = SandboxConfig(gpu="A100", provider="modal", models=[ModelConfig(NAME)])
    with pytest.raises(StartError, match="rented"):
        Sandbox(config).start()
    assert rented.asked and not hub.downloads


def test_a_hub_that_cannot_be_reached_from_here_is_left_to_the_machine(
    rented: Rented, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    config = SandboxConfig(gpu="A100", provider="modal", models=[ModelConfig(NAME)])
    with pytest.raises(StartError, match="rented"):
        Sandbox(config).start()
