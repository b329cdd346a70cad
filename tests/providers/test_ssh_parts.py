"""Packages and models on hosts with their own package indexes and caches."""

import hashlib
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from seer.environment import ModelConfig, SandboxConfig, ScopedSandbox
from seer.errors import StartError
from tests.support.sshd import SshServer

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("ssh-details")]


@pytest.fixture(scope="module")
def isolated() -> Generator[SshServer]:
    """A host that reaches no package index, with the system's interpreter and nothing in it."""
    lost = "UV_DEFAULT_INDEX=http://127.0.0.1:9/simple UV_HTTP_RETRIES=0"
    with SshServer(python="/usr/bin/python3", more=f"SetEnv {lost}") as server:
        yield server


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This host has one package, and a state of its own."""
    _write_wheel(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def _write_wheel(folder: Path) -> None:
    files = {
        "seer_contract_wheel.py": b"ANSWER = 42\n",
        "seer_contract_wheel-1.0.dist-info/METADATA": (
            b"Metadata-Version: 2.1\nName: seer-contract-wheel\nVersion: 1.0\n"
        ),
        "seer_contract_wheel-1.0.dist-info/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = "seer_contract_wheel-1.0.dist-info/RECORD"
    lines = [
        f"{name},sha256={urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},"
        f"{len(data)}\n"
        for name, data in files.items()
    ]
    with zipfile.ZipFile(folder / "seer_contract_wheel-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
        wheel.writestr(record, "".join([*lines, f"{record},,\n"]))


def test_a_host_without_a_network_gets_wheels_and_uses_its_own_models(
    isolated: SshServer, tmp_path: Path
) -> None:
    cached = tmp_path / "models--org--cached"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("c0ffee")
    folders = {
        "org/named": tmp_path / "org/named",
        "org/slug": tmp_path / "org--slug",
        "org/cached": cached / "snapshots" / "c0ffee",
    }
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "weights").write_text(name)
    config = SandboxConfig(
        gpu=None,
        provider="ssh",
        provider_options={**isolated.options(), "models": str(tmp_path)},
        models=[ModelConfig(name) for name in folders],
        python_packages=["seer-contract-wheel==1.0"],
    )
    with ScopedSandbox(config) as scoped:
        said = scoped.exec_python("import seer_contract_wheel as w; print(w.ANSWER)")
        assert said.strip() == "42"
        for handle, name in zip(scoped.model_handles, folders, strict=True):
            assert handle.path == f"/models/{name.replace('/', '--')}"
            assert scoped.read_file(f"{handle.path}/weights").decode() == name
    unknown = replace(config, python_packages=["seer-no-such-package"], models=[])
    with pytest.raises(StartError, match="seer-no-such-package"):
        ScopedSandbox(unknown).start()
