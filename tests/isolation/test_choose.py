"""Which backend is chosen, and that nothing starts if none works."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from seer.errors import IsolationUnavailableError
from seer.isolation import BackendName, JailLimits, Policy, backends, choose

from .conftest import Starter

UNCONFINED = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
# These fake `bwrap` programs run no command: one prints its own status, the others fail.
PRETENDER = "#!/bin/sh\nfor last; do :; done\ncat /proc/self/status /proc/self/net/dev\nexit 0\n"
BROKEN = "#!/bin/sh\necho 'bwrap: out of order' >&2\nexit 1\n"
CROWDED = "#!/bin/sh\necho 'bwrap: Creating new namespace failed: {}' >&2\nexit 1\n"


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(IsolationUnavailableError, match="'docker'.*bubblewrap, landlock, none"):
        choose(cast(BackendName, "docker"))


def test_landlock_is_refused_for_hidden_models_and_for_the_proxy() -> None:
    with pytest.raises(IsolationUnavailableError, match="hidden model"):
        choose("landlock", needs=frozenset({"hidden"}))
    with pytest.raises(IsolationUnavailableError, match="proxy"):
        choose("landlock", needs=frozenset({"proxy"}))


def test_going_without_a_jail_is_loud_and_keeps_no_promise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert choose("none").name == "none"
    assert "NO JAIL" in caplog.text
    with pytest.raises(IsolationUnavailableError, match="nothing is hidden"):
        choose("none", needs=frozenset({"hidden"}))


def test_without_a_jail_the_environment_is_still_clean_and_limits_hold(tmp_path: Path) -> None:
    policy = Policy(env={"ONLY": "this"}, cwd=str(tmp_path), limits=JailLimits(open_files=50))
    code = "import os, resource; print(sorted(os.environ), resource.getrlimit(7)[0], os.getcwd())"
    launch = choose("none").launch(policy, [sys.executable, "-I", "-c", code])
    os.environ["PLANTED"] = "x"
    done = subprocess.run(
        launch.argv, env=launch.env, pass_fds=launch.pass_fds, capture_output=True, text=True
    )
    launch.close()
    assert done.stdout == f"['LC_CTYPE', 'ONLY'] 50 {tmp_path}\n", done.stderr


@pytest.mark.full
def test_both_backends_work_on_this_machine() -> None:
    assert backends() == {"bubblewrap": None, "landlock": None, "none": None}
    assert choose().name == "bubblewrap"


@pytest.mark.full
def test_a_launch_leaves_no_descriptor_behind() -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    for name in ("bubblewrap", "landlock"):
        backend = choose(name)
        before = opened()
        backend.launch(Policy(), ["/bin/true"]).close()
        with pytest.raises(Exception, match="NUL"):
            choose("bubblewrap").launch(Policy(env={"A": "b\0c"}), ["/bin/true"])
        assert opened() == before


def _choose(starter: Starter, path: Path | str, program: str) -> str:
    done = subprocess.run(
        [*starter.command("spawn.py")[:-1], "-c", program],
        env={**starter.environment(), "PATH": str(path)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


NAME = "from seer.isolation import choose; print(choose().name)"
BWRAP = "from seer.isolation import choose; print(choose('bubblewrap').name)"
NO_LANDLOCK = "from seer.isolation.backends import _launcher; _launcher.abi = lambda: 0; "


@pytest.mark.full
def test_landlock_takes_over_where_bwrap_is_missing(starter: Starter) -> None:
    assert _choose(starter, "/nowhere", NAME) == "landlock\n"
    assert "bwrap is not on PATH" in _choose(starter, "/nowhere", BWRAP)


@pytest.mark.full
@pytest.mark.parametrize("text", [UNCONFINED, PRETENDER, BROKEN])
def test_a_bwrap_that_does_not_confine_is_not_used(starter: Starter, text: str) -> None:
    folder = starter.make("bin")
    (folder / "bwrap").write_text(text)
    (folder / "bwrap").chmod(0o755)
    said = _choose(starter, f"{folder}:/usr/bin:/bin", BWRAP)
    assert "IsolationUnavailableError" in said
    assert _choose(starter, f"{folder}:/usr/bin:/bin", NAME) == "landlock\n"


@pytest.mark.full
@pytest.mark.parametrize("error", ["Resource temporarily unavailable", "Cannot allocate memory"])
def test_a_shortage_does_not_choose_a_weaker_jail(starter: Starter, error: str) -> None:
    folder = starter.make("bin")
    (folder / "bwrap").write_text(CROWDED.format(error))
    (folder / "bwrap").chmod(0o755)
    said = _choose(starter, f"{folder}:/usr/bin:/bin", NAME)
    assert "IsolationUnavailableError" in said
    assert "bubblewrap could not be tried, so nothing was started" in said
    assert "too many processes for another jail" in said
    assert "landlock" not in said


@pytest.mark.full
def test_an_ordinary_users_landlock_is_refused_for_a_gpu(starter: Starter) -> None:
    program = (
        "from seer.isolation import Policy, choose\n"
        "try: choose('landlock').launch(Policy(gpu=True), ['/bin/true']).close()\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    said = _choose(starter, "/usr/bin:/bin", program)
    if starter.who == "root":
        assert said == ""
    else:
        assert said.startswith("IsolationError CUDA needs /proc/self")


@pytest.mark.full
def test_nothing_is_chosen_where_nothing_works(starter: Starter) -> None:
    said = _choose(starter, "/nowhere", NO_LANDLOCK + NAME)
    assert "IsolationUnavailableError" in said
    for part in ("bubblewrap: bwrap is not on PATH; install", "landlock: ", "isolation='none'"):
        assert part in said


@pytest.mark.full
def test_a_relative_path_entry_is_not_trusted(starter: Starter) -> None:
    folder = starter.make("bin")
    (folder / "bwrap").write_text(UNCONFINED)
    (folder / "bwrap").chmod(0o755)
    program = f"import os; os.chdir({str(folder)!r}); " + BWRAP
    assert "bwrap is not on PATH" in _choose(starter, ".", program)


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_without_the_right_to_mount_refuses_what_its_user_cannot_reach(
    readable_copy: Path,
) -> None:
    program = "from seer.isolation import backends; print(backends()['landlock'])"
    weak = ["/usr/bin/setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    closed = subprocess.run(
        [*weak, sys.executable, "-c", program],
        env={"PATH": "/usr/bin", "PYTHONPATH": str(readable_copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    if Path(sys.base_prefix).is_relative_to("/root"):
        assert "CAP_SYS_ADMIN" in closed.stdout
    system = subprocess.run(
        [*weak, "/usr/bin/python3", "-c", program],
        env={"PATH": "/usr/bin", "PYTHONPATH": str(readable_copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert system.stdout == "None\n", system.stderr
