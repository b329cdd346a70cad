"""The escape attempts of the security page, made by code in a local session."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from seer.isolation import backends
from tests.support import escapes

from .readable import copy_environment

if TYPE_CHECKING:
    from .break_out import Report

pytestmark = [pytest.mark.full, pytest.mark.alone, pytest.mark.timeout(400)]

# A user of this process alone: tests in other workers use up what the kernel counts per user.
USER = 50_000 + os.getpid() % 9_000
DRIVER = Path(__file__).with_name("break_out.py")


@pytest.fixture
def home() -> Generator[Path]:
    """A folder that every user can enter, with the attempts and the home of an ordinary user."""
    folder = Path(tempfile.mkdtemp(prefix="seer-user-"))
    folder.chmod(0o755)
    (folder / "home").mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(escapes.__file__).parent, folder / "escapes", ignore=ignored)
    if os.geteuid() == 0:
        os.chown(folder / "home", USER, USER)
    yield folder
    shutil.rmtree(folder)


def check(
    home: Path, command: list[str], env: dict[str, str], who: str, *, group: str | None = None
) -> None:
    usable = [name for name in ("bubblewrap", "landlock") if backends()[name] is None]
    assert usable, backends()
    done = subprocess.run(
        [*command, *usable],
        env={**env, "PYTHONPATH": str(home)},
        cwd=env["HOME"],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    reports: dict[str, Report] = json.loads(done.stdout)
    assert set(reports) == set(usable)
    table = [item for item in escapes.ATTEMPTS.values() if group in (None, item.group)]
    for backend, report in reports.items():
        weak = {item.name for item in table if f"{backend}-{who}" in item.weak}
        assert set(report["tried"]) == {item.name for item in table}
        assert set(report["escaped"]) == weak, report["escaped"]
        assert report["damage"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_exactly_the_stated_attempts_succeed_in_sessions_of_root(home: Path) -> None:
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    env = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    env["XDG_CACHE_HOME"] = cache  # existing packages need not be installed again
    check(home, [sys.executable, str(DRIVER)], env, "root")


def test_exactly_the_stated_attempts_succeed_in_sessions_of_an_ordinary_user(home: Path) -> None:
    env = {"HOME": str(home / "home"), "PATH": "/usr/bin:/bin"}
    if os.geteuid() != 0:
        check(home, [sys.executable, str(DRIVER)], env, "user")
        return
    python = copy_environment(home)
    shutil.copy(DRIVER, home)
    # An interpreter with a shared library looks for it where it was originally installed.
    env["LD_LIBRARY_PATH"] = str(home / "python" / "lib")
    user = ["/usr/bin/setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
    check(home, [*user, str(python), str(home / DRIVER.name)], env, "user")
    machines = home / "home/.local/state/seer/machines"
    assert list(machines.iterdir()) == []


def test_copies_of_an_interface_help_nobody_out(home: Path) -> None:
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    env = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    env["XDG_CACHE_HOME"] = cache
    who = "root" if os.geteuid() == 0 else "user"
    check(home, [sys.executable, str(DRIVER), "--copies"], env, who, group="session")
