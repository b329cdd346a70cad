"""`seer run`: the program it runs ends with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
