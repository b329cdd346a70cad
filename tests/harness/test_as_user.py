"""Confinement works for an ordinary user as it does for root."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

# A user of this process alone: tests in other workers use up what the kernel counts per user.
USER = 50_000 + os.getpid() % 9_000
READABLE = Path(__file__).parents[1] / "execution" / "readable.py"


@pytest.fixture(scope="module")
def ground() -> Generator[tuple[Path, list[str]]]:
    """A folder that an ordinary user can reach, and how to run its interpreter as one."""
    folder = Path(tempfile.mkdtemp(prefix="seer-as-user-"))
    folder.chmod(0o755)
    shutil.copy(Path(__file__).with_name("as_user.py"), folder)
    (folder / "home").mkdir()
    command = [sys.executable]
    try:
        if os.geteuid() == 0:
            os.chown(folder / "home", USER, USER)
            copy = runpy.run_path(str(READABLE))["copy_environment"]
            needed = ("claude-agent-sdk", "genai-prices", "psutil", "cryptography", "cffi")
            user = ["--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
            command = ["/usr/bin/setpriv", *user, str(copy(folder, *needed))]
        yield folder, command
    finally:
        shutil.rmtree(folder)


def test_a_vendors_agent_is_confined_for_an_ordinary_user(
    ground: tuple[Path, list[str]],
) -> None:
    folder, command = ground
    env = {
        "HOME": str(folder / "home"),
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(folder / "python" / "lib"),
        "SEER_RUNS": str(folder / "home" / "runs"),
        "OTHER_SERVICE_TOKEN": "a-token-of-another-service",
    }
    done = subprocess.run(
        [*command, str(folder / "as_user.py")],
        capture_output=True,
        text=True,
        env=env,
        cwd=folder / "home",
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["user"] != 0
    assert report["results"] == [["Bash", True], ["Read", True], ["add", False]]
    assert report["reason"] == "completed"
    assert not report["leaked"]
    assert report["processes"], "the agent's process was not seen"
    for process in report["processes"]:
        assert process["apart"], "it has the host's network"
        assert "OTHER_SERVICE_TOKEN" not in process["names"]
    assert report["left"] == []
    assert report["scripted"] == ["4"]
    assert report["record"] == "0o700"
