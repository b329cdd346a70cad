"""A hostile session does not use up kernel resources of the session next to it.

A jail that root starts has a user of its own. Jails of an ordinary user share that user, so there
some of what a neighbour's own programs do is expected to fail, and exactly that must. Calls of the
gate, and the user's programs outside, must work in any case.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from seer.isolation import backends
from tests.execution.readable import copy_environment

from .neighbours import ATTACKS

pytestmark = [pytest.mark.full, pytest.mark.alone, pytest.mark.timeout(400)]

# A user of this process alone. Other tests, in other workers, also start jails as an ordinary user,
# and some of them use up what the kernel counts per user. They would make a neighbour here fail, or
# hold a part of what an attack should get.
USER = 50_000 + os.getpid() % 9_000
DRIVER = Path(__file__).with_name("neighbours.py")

EXPECTED: dict[str, dict[str, set[str]]] = {
    "bubblewrap-root": {},
    "landlock-root": {},
    # Descriptors in flight are counted per user, across namespaces.
    "bubblewrap-user": {"descriptors": {"descriptor"}},
    "landlock-user": {
        "descriptors": {"descriptor"},
        "signals": {"timer"},
        "timers": {"timer"},
    },
}
"""What a neighbour's own programs cannot do during an attack; the security page says so."""

HALVES = (list(ATTACKS)[::2], list(ATTACKS)[1::2])


@pytest.fixture(scope="module")
def user_python() -> Generator[Path]:
    """The interpreter, Seer and their packages, readable to an ordinary user."""
    folder = Path(tempfile.mkdtemp(prefix="seer-user-"))
    folder.chmod(0o755)
    (folder / "home").mkdir()
    if os.geteuid() == 0:
        os.chown(folder / "home", USER, USER)
    shutil.copy(DRIVER, folder)
    yield copy_environment(folder)
    shutil.rmtree(folder)


def attack(backend: str, who: str, names: list[str], python: Path | None, home: Path) -> None:
    """Run the attacks and compare what failed with what is expected to."""
    if who == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if backends()[backend] is not None:  # pyright: ignore[reportArgumentType]
        pytest.skip(f"needs {backend}")
    command = [sys.executable, str(DRIVER), backend, *names]
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    env = {**os.environ, "XDG_STATE_HOME": str(home / "state"), "XDG_CACHE_HOME": cache}
    if python is not None:
        folder = python.parents[2]
        env = {
            "HOME": str(folder / "home"),
            "PATH": "/usr/bin:/bin",
            "LD_LIBRARY_PATH": str(folder / "python" / "lib"),
        }
        user = ["/usr/bin/setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
        command = [*user, str(python), str(folder / DRIVER.name), backend, *names]
    done = subprocess.run(
        command, env=env, cwd="/", capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    held = {name: int(failed.pop("held")) for name, failed in found.items() if name != "after"}
    expected = EXPECTED[f"{backend}-{who}"]
    wrong = {
        name: failed for name, failed in found.items() if set(failed) != expected.get(name, set())
    }
    assert not wrong, (wrong, held)
    # An attack that took nothing proves nothing, unless the jail refuses it altogether.
    refused = {"keyrings"} | ({"watches", "queues"} if backend == "landlock" else set[str]())
    assert {name for name, count in held.items() if count == 0} == refused & set(names)


@pytest.mark.parametrize(
    ("backend", "half"), [("bubblewrap", HALVES[0]), ("landlock", HALVES[1])], ids=str
)
def test_a_neighbour_of_roots_works_on(backend: str, half: list[str], tmp_path: Path) -> None:
    attack(backend, "root", half, None, tmp_path)


@pytest.mark.parametrize(
    ("backend", "half"), [("bubblewrap", HALVES[1]), ("landlock", HALVES[0])], ids=str
)
def test_a_users_neighbour_works_on_but_for_what_is_stated(
    backend: str, half: list[str], user_python: Path, tmp_path: Path
) -> None:
    attack(backend, "user", half, user_python if os.geteuid() == 0 else None, tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
@pytest.mark.parametrize("who", ["root", "user"])
def test_all_attacks_on_a_neighbour(
    backend: str, who: str, user_python: Path, tmp_path: Path
) -> None:
    as_other = who == "user" and os.geteuid() == 0
    attack(backend, who, list(ATTACKS), user_python if as_other else None, tmp_path)
