"""A steward's commands cannot signal the steward."""

import os
import signal
import subprocess
import sys

import pytest

from seer.isolation import _launcher, script  # pyright: ignore[reportPrivateUsage]

pytestmark = pytest.mark.full


@pytest.mark.skipif(_launcher.abi() < 6, reason="needs Linux 6.12")
def test_a_confined_command_signals_its_own_children_but_not_its_starter() -> None:
    code = (
        f"import os, runpy, signal, subprocess\n"
        f"assert runpy.run_path({str(script('scope'))!r})['confine_signals']()\n"
        "try: os.kill(os.getppid(), 0); print('signalled')\n"
        "except PermissionError: print('refused')\n"
        "child = subprocess.Popen(['sleep', '60']); child.kill(); print(child.wait())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n-9\n", done.stderr
    # Only the child was confined.
    with subprocess.Popen(["sleep", "60"]) as process:
        os.kill(process.pid, signal.SIGKILL)
