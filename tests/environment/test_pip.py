"""pip in an agent's machine: what it installs belongs to that machine and can be imported."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from seer.environment import Sandbox, SandboxConfig, ScopedSandbox
from seer.execution import acreate_notebook_session
from tests.environment.test_packages import add_wheel

Backend = Literal["bubblewrap", "landlock"]

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

BOTH = pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels as the only source of packages, and a cache of the test's own."""
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")):
            monkeypatch.delenv(name)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    add_wheel(wheels, "given", "1.0")
    return wheels


def config(index: Path, backend: Backend = "bubblewrap") -> SandboxConfig:
    add_wheel(index, "given", "2.0")
    add_wheel(index, "added", "1.0", requires=("given",))
    return SandboxConfig(
        gpu=None,
        provider="local",
        network="none",
        isolation=backend,
        python_packages=["given==1.0"],
        env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "wheels"},
        local_dirs=[(str(index), "wheels")],
    )


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(index: Path, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(config(index, request.param)) as running:
        yield running


def installed_script(sandbox: Sandbox, name: str) -> str:
    """Run a script that pip has installed in the machine, and return its output."""
    if sandbox.config.isolation == "landlock" and os.geteuid() != 0:
        # chmod has no effect there, so nothing can be made executable.
        return sandbox.exec(f'python3 "$(command -v {name})"')
    return sandbox.exec(name)


def test_a_package_and_its_script_are_installed_beside_those_of_the_machine(
    sandbox: Sandbox,
) -> None:
    said = sandbox.exec("pip install added")
    assert "Requirement already satisfied: given" in said
    assert installed_script(sandbox, "added") == "1.0\n"
    assert sandbox.exec_python("import added, given; print(added.version, given.version)") == (
        "1.0 1.0\n"
    )
    listed = sandbox.exec("pip list --format=freeze")
    assert {"added==1.0", "given==1.0"} <= set(listed.split())


def test_an_upgrade_of_a_package_of_the_machine_takes_its_place(sandbox: Sandbox) -> None:
    assert sandbox.exec("given") == "1.0\n"
    sandbox.exec("python3 -m pip install --upgrade given")
    assert installed_script(sandbox, "given") == "2.0\n"
    assert sandbox.exec_python("import given; print(given.version)") == "2.0\n"
    listed = sandbox.exec("pip list --format=freeze").split()
    assert [line for line in listed if line.startswith("given")] == ["given==2.0"]
    sandbox.exec("pip uninstall -y given")
    assert sandbox.exec_python("import given; print(given.version)") == "1.0\n"


def test_a_project_of_the_agents_own_is_installed_in_place(sandbox: Sandbox) -> None:
    sandbox.write_file("mine/mine.py", "def main():\n    print('mine')\n")
    sandbox.write_file(
        "mine/pyproject.toml",
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        "[project]\nname = 'mine'\nversion = '1'\n",
    )
    sandbox.write_file("mine/backend.py", _BACKEND)
    sandbox.exec("pip install -e mine")
    sandbox.write_file("mine/mine.py", "def main():\n    print('changed')\n")
    assert sandbox.exec("cd / && python3 -c 'import mine; mine.main()'") == "changed\n"


_BACKEND = """
import os, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    files = {
        "mine.pth": os.getcwd(),
        "mine-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: mine\\nVersion: 1\\n",
        "mine-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n"
        "Tag: py3-none-any\\n",
        "mine-1.dist-info/RECORD": "",
    }
    name = "mine-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name

build_wheel = build_editable
"""


def test_without_a_network_pip_says_why_it_downloads_nothing(index: Path) -> None:
    plain = SandboxConfig(gpu=None, provider="local", network="none")
    with Sandbox(plain) as sandbox:
        for command in ("pip", "pip3", "python3 -m pip"):
            failed = sandbox.exec(f"{command} --retries 0 install nowhere", check=False)
            assert failed.exit_code == 1
            assert "this sandbox has no network" in failed.stderr
            assert "SandboxConfig(network=...)" in failed.stderr
        assert sandbox.exec("pip list").stderr == ""
        assert sandbox.exec_python("print(1)").stderr == ""


async def test_what_a_cell_installs_the_next_cell_imports(index: Path, tmp_path: Path) -> None:
    sandbox = await Sandbox(config(index)).astart()
    try:
        session = await acreate_notebook_session(sandbox, notebook_dir=tmp_path / "out")
        async with session:
            assert (await session.aexec("import given; given.version")).value == "'1.0'"
            await session.aexec("!pip install added")
            assert (await session.aexec("import added; added.version")).value == "'1.0'"
            said = await session.aexec("%pip install --upgrade given")
            assert "Successfully installed given-2.0" in said.stdout
            assert (await session.aexec("!given")).stdout == "2.0\r\n"
    finally:
        await sandbox.aterminate()


def test_what_was_installed_is_this_machines_alone_and_in_its_snapshot(index: Path) -> None:
    wanted = config(index)
    with Sandbox(wanted) as sandbox:
        sandbox.exec("pip install added")
        kept = sandbox.snapshot("with a package")
    with Sandbox(wanted) as other:
        assert other.exec("added", check=False).exit_code == 127
    with Sandbox.from_snapshot(kept) as restored:
        assert restored.exec("added") == "1.0\n"
        assert restored.exec_python("import added; print(added.version)") == "1.0\n"


@BOTH
def test_the_packages_that_machines_share_stay_as_they_are(index: Path, backend: Backend) -> None:
    with Sandbox(config(index, backend)) as sandbox:
        shared = sandbox.exec_python("import given; print(given.__file__)").strip()
        failed = sandbox.exec(f"echo x >> {shared}", check=False)
        assert failed.exit_code != 0
        assert sandbox.exec_python("import given; print(given.version)") == "1.0\n"


@BOTH
def test_the_machine_of_an_interface_installs_nothing(index: Path, backend: Backend) -> None:
    wanted = SandboxConfig(
        gpu=None, provider="local", isolation=backend, python_packages=["given==1.0"]
    )
    with ScopedSandbox(wanted) as scoped:
        assert scoped.machine.layout.packages is None
        write = "import sys; open(sys.prefix + '/planted', 'w')"
        assert scoped.exec_python(write, check=False).exit_code != 0
