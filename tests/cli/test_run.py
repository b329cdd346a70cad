"""`seer run`: the program that it runs ends with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seer.runs import RunIndex, open_run
from tests.waiting import wait_until

pytestmark = pytest.mark.full

PROGRAM = """
import os
import time
from pathlib import Path

Path("pid").write_text(str(os.getpid()))
Path("pid").rename("started")
try:
    time.sleep(600)
except KeyboardInterrupt:
    Path("interrupted").touch()
"""


@pytest.mark.parametrize("deaf", [False, True], ids=["hears interrupts", "in the background"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_does_not_outlive_a_killed_run(tmp_path: Path, number: int, deaf: bool) -> None:
    (tmp_path / "main.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "seer", "run", "main.py", "--runs", "records"]
    if deaf:
        command = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    with subprocess.Popen(command, cwd=tmp_path) as run:
        wait_until((tmp_path / "started").exists, "the program runs", within=60)
        program = os.pidfd_open(int((tmp_path / "started").read_text()))
        run.send_signal(number)
    try:
        wait_until(lambda: _ended(program), "the program ends")
    finally:
        os.close(program)
    assert (tmp_path / "interrupted").exists() is not deaf


def _ended(program: int) -> bool:
    try:
        signal.pidfd_send_signal(program, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_fork_goes_on_with_the_agent_that_was_named(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import asyncio\n"
        "from seer.harness import Scripted, Step, run_agent\n"
        "async def look():\n"
        "    agent = Scripted([Step(text='one'), Step(text='two')])\n"
        "    async for event in run_agent('x', {}, provider=agent):\n"
        "        pass\n"
        "asyncio.run(look())\n"
    )
    (tmp_path / "other.toml").write_text('[[steps]]\ntext = "the other one"\n')
    seer = [sys.executable, "-m", "seer"]
    records = ["--runs", str(tmp_path / "records")]
    subprocess.run([*seer, "run", "main.py", *records], cwd=tmp_path, check=True)
    (first,) = RunIndex(tmp_path / "records").list()
    fork = ["--fork-at", "1", "--agent", f"scripted:{tmp_path / 'other.toml'}"]
    subprocess.run([*seer, "replay", first.run_id, *records, *fork], cwd=tmp_path, check=True)
    forked, _ = RunIndex(tmp_path / "records").list()
    said = [
        event["text"]
        for event in open_run(forked.run_id, tmp_path / "records").events()
        if event["type"] == "text"
    ]
    assert said == ["one", "the other one"]


def test_an_interface_that_is_taken_for_a_program_is_told_how_to_check(tmp_path: Path) -> None:
    (tmp_path / "lab.py").write_text("@expose\ndef add(a: int) -> int:\n    return a\n")
    command = [sys.executable, "-m", "seer", "run", "lab.py", "--runs", "records"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr.endswith("not a program; list it with: seer check lab.py\n")


AS_MAIN = """
import multiprocessing
import pickle
import sys
from dataclasses import dataclass

@dataclass
class Point:
    x: int

def double(point):
    return Point(2 * point.x)

if __name__ == "__main__":
    assert sys.argv == ["main.py", "--seed", "3"], sys.argv
    assert __file__.endswith("/main.py") and __spec__ is None
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [Point(2)]))
    raise ValueError("the program's own")
"""


def test_a_program_runs_as_python_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(AS_MAIN)
    command = [sys.executable, "-m", "seer", "run", "main.py", "--", "--seed", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[Point(x=4)]\n", done.stderr
    lines = done.stderr.splitlines()
    assert lines[:2] == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/main.py", line 20, in <module>',
    ]
    assert "ValueError: the program's own" in lines
    assert done.returncode == 1


def test_a_package_that_is_not_installed_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "from seer.errors import MissingExtraError\n"
        "raise MissingExtraError('torch is needed; run: seer demo')\n"
    )
    command = [sys.executable, "-m", "seer", "run", "--runs", "records"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stderr.splitlines()[0] == "error: torch is needed; run: seer demo"
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_an_error_of_seer_is_its_message_and_the_line_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "from seer.environment import SandboxConfig, ScopedSandbox\n"
        "def study():\n"
        "    with ScopedSandbox(SandboxConfig(provider='modal')) as scoped:\n"
        "        scoped.serve('interface.py')\n"
        "study()\n"
    )
    command = [sys.executable, "-m", "seer", "run", "--runs", "records"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MODAL_")}
    env |= {"MODAL_CONFIG_PATH": str(tmp_path / "none"), "SEER_PROGRESS": "off"}
    env.pop("SEER_PROVIDER", None)
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100
    )
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: start failed in phase"), done.stderr
    assert "no Modal credentials are configured" in lines[0]
    assert lines[1] == (
        "  main.py, line 3: with ScopedSandbox(SandboxConfig(provider='modal')) as scoped:"
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_an_error_of_seer_does_not_hide_the_error_that_the_program_was_handling(
    tmp_path: Path,
) -> None:
    (tmp_path / "main.py").write_text(
        "from seer.errors import SandboxLostError\n"
        "try:\n"
        "    raise ValueError('the first')\n"
        "finally:\n"
        "    raise SandboxLostError('the second')\n"
    )
    command = [sys.executable, "-m", "seer", "run", "--runs", "records"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "ValueError: the first" in done.stderr
    assert "SandboxLostError: the second" in done.stderr
