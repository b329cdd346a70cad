"""Limits over a whole process tree, in real control groups.

It makes control groups itself, without starting a jail for each case.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from seer.isolation import _cgroup, script  # pyright: ignore[reportPrivateUsage]

pytestmark = pytest.mark.full

MEGABYTE = 1 << 20


@pytest.fixture
def group() -> Generator[_cgroup.Cgroup]:
    """A group of 64 MB and 20 processes."""
    try:
        made = _cgroup.create(f"seer-test-{os.getpid()}", memory=64 * MEGABYTE, pids=20)
    except OSError as error:
        pytest.skip(str(error))
    yield made
    made.kill()
    made.remove()
    made.remove()
    assert not any(Path(folder).exists() for folder in made.folders)


def test_a_process_that_wants_too_much_memory_is_killed(group: _cgroup.Cgroup) -> None:
    code = "x = bytearray(200 << 20); print('had it')"
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=group.join, check=False)
    assert done.returncode == -signal.SIGKILL
    assert group.usage()["oom_kills"] >= 1


def test_forks_stop_at_the_limit(group: _cgroup.Cgroup) -> None:
    code = (
        "import os, signal\n"
        "made = 0\n"
        "try:\n"
        "    while made < 100:\n"
        "        if os.fork() == 0: signal.pause()\n"
        "        made += 1\n"
        "except OSError: print(made, flush=True)\n"
        "os.killpg(0, 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=group.join,
        stdout=subprocess.PIPE,
        start_new_session=True,
        check=False,
    )
    assert 0 < int(done.stdout) < 20


def test_killing_reaches_daemons(group: _cgroup.Cgroup) -> None:
    code = (
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: signal.pause()\n"
        "    os._exit(0)\n"
        "os.wait(); print('ready', flush=True); signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], preexec_fn=group.join, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert len(group.pids()) == 2
        _cgroup.Cgroup(group.folders).kill()
        assert process.stdout.read() == b""
    assert process.returncode == -signal.SIGKILL


def test_a_frozen_group_stands_still_and_can_be_killed(group: _cgroup.Cgroup) -> None:
    if not group.can_freeze:
        pytest.skip("this kernel has no freezer for control groups")
    code = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        preexec_fn=group.join,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        group.freeze(True)
        process.stdin.write(b"asked\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], 0.5)
        assert not ready, "a frozen process has answered"
        group.freeze(False)
        assert process.stdout.readline() == b"asked\n"
        group.freeze(True)
        _cgroup.Cgroup(group.folders).kill()
        assert process.stdout.read() == b""
    assert process.returncode == -signal.SIGKILL


def test_a_group_without_the_right_to_make_one_says_why() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    code = (
        f"import runpy; names = runpy.run_path({str(script('cgroup'))!r})\n"
        "try: names['create']('x', memory=1 << 30)\n"
        "except OSError as error: print('refused:', error)\n"
    )
    copy = Path("/tmp") / f"seer-cgroup-{os.getpid()}.py"
    copy.write_bytes(script("cgroup").read_bytes())
    copy.chmod(0o644)
    try:
        done = subprocess.run(
            ["/usr/bin/python3", "-c", code.replace(str(script("cgroup")), str(copy))],
            user=1001,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        copy.unlink()
    assert done.stdout.startswith("refused:"), done.stderr
