"""The local provider passes the contract for an ordinary user, on both jail backends."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

import seer
from seer.testing.provider_contract import ProviderContract

# A user of this process alone: tests in other workers use up what the kernel counts per user.
_USER = 50_000 + os.getpid() % 9_000
# Root's own interpreter may be in a folder that no one else can read.
_PYTHON = "/usr/bin/python3" if os.geteuid() == 0 else sys.executable

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not os.access(_PYTHON, os.X_OK), reason="an ordinary user has no interpreter here"
    ),
]

_SLOW = {"processes_are_limited", "an_idle_machine_ends_and_a_busy_one_does_not"}
_CANNOT = {
    "bubblewrap": set[str](),
    "landlock": {
        # It has no own network: connect() and ports are closed.
        "ports_in_the_machine_can_be_reached",
        "programs_in_the_machine_can_connect_out_to_a_listener",
        "a_listener_cannot_take_a_name_that_is_in_use",
        # No mounts: the host's terminals would be the only ones.
        "a_terminal_is_a_terminal",
        "control_c_in_a_terminal_interrupts",
    },
}


@pytest.fixture(scope="module")
def copy() -> Generator[Path]:
    """A copy of the package, and a home, that an ordinary user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="seer-as-user-"))
    folder.chmod(0o755)
    source = Path(seer.__file__).parent
    shutil.copytree(source, folder / "seer", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("as_user.py"), folder)
    # The user cannot write bytecode there, and would compile again in every process.
    subprocess.run([_PYTHON, "-m", "compileall", "-q", folder], check=True)
    (folder / "home").mkdir()
    if os.geteuid() == 0:
        os.chown(folder / "home", _USER, _USER)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
def test_an_ordinary_user_gets_the_same_machines(copy: Path, backend: str) -> None:
    names = [name for name in ProviderContract.names() if name not in _SLOW]
    command = [_PYTHON, str(copy / "as_user.py"), backend, *names]
    if os.geteuid() == 0:
        user = ["--reuid", str(_USER), "--regid", str(_USER), "--clear-groups"]
        command = ["/usr/bin/setpriv", *user, *command]
    env = {"HOME": str(copy / "home"), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(copy)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=380, check=False
    )
    results = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(results) == set(names), done.stderr
    failed = {name for name, result in results.items() if result != "ok"}
    unexpected = {name: results[name] for name in failed ^ _CANNOT[backend]}
    assert not unexpected
    if "a_terminal_is_a_terminal" in failed:
        assert "use bubblewrap" in results["a_terminal_is_a_terminal"]
    machines = copy / "home/.local/state/seer/machines"
    assert list(machines.iterdir()) == []
