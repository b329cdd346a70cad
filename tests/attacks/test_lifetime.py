"""When a controller is killed at any moment, nothing that ran for it stays."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

CONTROLLER = """
import sys
from pathlib import Path
from seer.environment import SandboxConfig, ScopedSandbox
from seer.execution import create_local_session
from seer.workspace import Workspace

file = Path(sys.argv[1]) / "tools.py"
file.write_text('import time\\n@expose\\ndef slow() -> None:\\n    time.sleep(600)\\n')
scoped = ScopedSandbox(SandboxConfig(gpu=None, provider="local")).start()
library = scoped.serve(file)
session = create_local_session(Workspace(libraries=[library]), Path(sys.argv[1]) / "work")
session.mcp_config
session.exec("import subprocess, tools\\n"
             "subprocess.Popen('setsid setsid sleep 601 &', shell=True, start_new_session=True)")
session.submit("print('busy', flush=True)\\ntools.slow()", on_output=lambda _: print(flush=True))
sys.stdin.read()
"""


def test_a_killed_controller_leaves_no_process_mount_or_machine(tmp_path: Path) -> None:
    state = tmp_path / "state"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {**os.environ, "XDG_STATE_HOME": str(state), "TMPDIR": str(temporary)}
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    )
    with controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"\n"
        machines = [entry.name for entry in (state / "seer" / "machines").iterdir()]
        assert len(machines) == 2
        watched: dict[int, int] = {}
        for pid in _of(state, machines):
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself meanwhile
                watched[pid] = os.pidfd_open(pid)
        controller.send_signal(signal.SIGKILL)
    assert len(watched) >= 6
    left: dict[int, int] = dict(watched)
    until = time.monotonic() + 30
    while left and time.monotonic() < until:
        ready: list[int] = select.select(list(left.values()), [], [], 1)[0]
        left = {pid: fd for pid, fd in left.items() if fd not in ready}
    for fd in watched.values():
        os.close(fd)
    assert not left
    # A process that was just starting when the others were listed must end too.
    wait_until(lambda: not _of(state, machines), "no process")
    assert list((state / "seer" / "machines").iterdir()) == []
    sessions = state / "seer" / "sessions"
    wait_until(lambda: not any(map(Path.is_dir, sessions.iterdir())), "no folder of a session")
    wait_until(lambda: not any(temporary.iterdir()), "no temporary folder")
    assert str(state) not in Path("/proc/self/mountinfo").read_text()
    assert str(state) not in Path("/proc/net/unix").read_text()


def _of(state: Path, machines: list[str]) -> list[int]:
    """Processes in these machines, or with something of `state` open, mounted or as argument."""
    marks = [os.fsencode(state), *(f"SEER_MACHINE={name}".encode() for name in machines)]
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            seen = [(entry / name).read_bytes() for name in ("mountinfo", "cmdline", "environ")]
            links = [entry / "cwd", *(entry / "fd").iterdir()]
        except OSError:
            continue
        for link in links:
            with contextlib.suppress(OSError):  # closed meanwhile; the process is still there
                seen.append(os.fsencode(link.readlink()))
        if any(mark in data for data in seen for mark in marks):
            found.append(int(entry.name))
    return found
